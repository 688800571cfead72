"""The persistent worker group.

`host` runs in ComfyUI's process. `launch` and `rank` run in the group's processes, whose working folder is the pack's.
`wire` defines what they send each other, `inside` what nodes run inside of a model, `comfyui` how ComfyUI's classes are
loaded. Imports go rank or host → launch → comfyui → inside → wire; the modules of this folder are shared by all.
`python -m worker.join` lends this machine to another one's group.
"""
