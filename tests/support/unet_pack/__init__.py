"""A node pack that puts functions into a UNet, in the ways of real packs. Hosts of the tests load it."""

from .patches import KINDS


class PatchUNet:
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "tests"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "kind": (list(KINDS),)}}

    def patch(self, model, kind):
        patched = model.clone()
        KINDS[kind](patched)
        return (patched,)


NODE_CLASS_MAPPINGS = {"Test_PatchUNet": PatchUNet}
