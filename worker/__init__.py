"""The persistent worker group.

`host` runs in ComfyUI's process. `launch` and `rank` run in the group's processes, whose working folder is the pack's.
`wire` defines what they send each other. Imports go rank → launch → wire and host → launch → wire; the modules of this
folder are shared by all. `python -m worker.join` lends this machine to another one's group.
"""
