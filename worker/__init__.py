"""The persistent worker group, by process.

`host` runs in ComfyUI's, `launch` and `rank` in the group's own, whose working root is the pack's folder; `wire` is
what goes between them. Imports go rank → launch → wire and host → launch → wire; what lies here is shared by all.
`python -m worker.join` lends this machine to another one's group.
"""
