"""The engine: runs unmodified diffusers transformers on a mesh of ranks.

Knows torch and diffusers; nothing of ComfyUI, nothing of sockets. `worker` imports it in the ranks, `nodes` only
its plan and its specs, which import neither torch.distributed nor diffusers.
"""
