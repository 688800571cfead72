"""A rank: serves requests, runs their operations, and agrees with the other ranks how each request ended.

It runs in torchrun's processes only. ComfyUI's process never imports it.
"""

if __name__ != "worker.rank":  # ComfyUI loads the pack under a name derived from its path
    raise ImportError(
        f"{__name__} runs in the ranks' processes, whose working root is the pack's folder, and in no other; "
        "worker.host is how ComfyUI's process asks for something."
    )
