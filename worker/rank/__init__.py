"""A rank: serves requests, executes their operations, agrees with the other ranks how each ended. Runs in torchrun's
processes alone; ComfyUI's never imports it."""
