"""The persistent worker group: launch, socket, protocol, supervision, and the ranks' main loop.

In ComfyUI's process only `client` is imported, and what it needs; that knows no torch.distributed. `launch` and
`rank` run in the group's own processes, whose working root is the pack's folder.
"""
