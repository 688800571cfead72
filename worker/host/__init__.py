"""ComfyUI's side of the worker group: what it can be asked for, and who keeps it running. Imports no rank's module,
and nothing of torch.distributed."""
