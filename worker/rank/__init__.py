"""A rank: serves requests, executes their operations, agrees with the other ranks how each ended. Runs in torchrun's
processes alone; ComfyUI's never imports it."""

if __name__ != "worker.rank":  # ComfyUI loads the pack under a name made of its path
    raise ImportError(
        f"{__name__} runs in the ranks' processes, whose working root is the pack's folder, and in no other; "
        "worker.host is how ComfyUI's process asks for something."
    )
