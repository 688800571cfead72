"""What a plan will cost, before it runs: what a forward computes (`forward`), the
memory that it takes (`memory`), what the machine can (`machine`), how long a
step of a plan is by both (`predict`), and which plan is the fastest that fits (`choose`).

Read in ComfyUI's process too, which has no torch.distributed, and in benchmarks.
"""
