"""A node pack that puts functions into a UNet, in the ways of real packs. Hosts of the tests load it."""

from .patches import image_prompt


class PatchUNet:
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "tests"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",)}}

    def patch(self, model):
        patched = model.clone()
        image_prompt(patched)
        return (patched,)


NODE_CLASS_MAPPINGS = {"Test_PatchUNet": PatchUNet}
