"""The ways in which node packs put functions at ComfyUI's places for them, by model, and the node that does."""

from comfy.patcher_extension import CallbacksMP, WrappersMP

from . import patches
from .habits import set_strength

# By habit and model, what goes where: the name of a list of patches and a function; or the name, a place and a function
# that takes its place.
FLUX, WAN, SD3, UNET = "flux", "wan", "sd3-dual", "unet"
DOUBLE, SINGLE = ("double_block", 1), ("single_block", 1)
shrinking, windows = patches.Shrinking(3, 0.5), patches.Windows(2)
HABITS = {
    "before attention": {FLUX: [("attn1_patch", patches.sharper)]},
    "before attention to the text": {UNET: [("attn2_patch", patches.sharper_with_mean)]},
    "a text that is written over": {UNET: [("attn2_patch", patches.write_over_text)]},
    "behind attention": {FLUX: [("attn1_output_patch", patches.louder_output)]},
    "attention to the text in one block": {UNET: [("attn2", ("middle", 0), patches.WithReference(32, 0.5))]},
    "attention to an image in a region": {UNET: [("attn2", ("middle", 0), patches.InRegion(32, 0.6))]},
    "other places of a UNet": {
        UNET: [
            ("attn2_output_patch", patches.louder_output),
            ("input_block_patch", patches.louder_block),
            ("middle_block_after_patch", patches.louder_middle),
            ("emb_patch", patches.later),
        ]
    },
    "fewer pixels in the depth": {
        UNET: [("input_block_patch_after_skip", shrinking.down), ("output_block_patch", shrinking.up)]
    },
    "attention in windows": {UNET: [("attn1_patch", windows.part), ("attn1_output_patch", windows.join)]},
    "a block that is skipped": {SD3: [("dit", DOUBLE, patches.skip_block)]},
    "a block in its place": dict.fromkeys((FLUX, WAN), [("dit", DOUBLE, patches.replacing(0.7))]),
    "a single block in its place": {FLUX: [("dit", SINGLE, patches.replacing(0.7))]},
    "behind each block": {WAN: [("double_block", patches.behind_block)]},
}
MOMENTS = ("begin", "sampling", "call", "inside", "callback")


def with_functions(options, habit, model):
    """A call's options with a habit's functions. What others have put there stays as it is."""
    options = dict(options)
    for name, *place, function in HABITS[habit][model]:
        key = "patches_replace" if place else "patches"
        options[key] = found = dict(options.get(key, {}))
        if place:
            found[name] = {**found.get(name, {}), place[0]: function}
        else:
            found[name] = [*found.get(name, []), function]
    return options


class PatchHabit:
    @classmethod
    def INPUT_TYPES(cls):
        habit, moment = (list(HABITS),), (MOMENTS,)
        return {"required": {"model": ("MODEL",), "habit": habit, "of": ("STRING",), "moment": moment}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "tests"

    def patch(self, model, habit, of, moment):
        set_strength(1.2)
        patched = model.clone()
        getattr(self, moment)(patched, lambda options: with_functions(options, habit, of))
        return (patched,)

    def begin(self, patched, put):
        patched.model_options["transformer_options"] = put(patched.model_options["transformer_options"])

    def sampling(self, patched, put):
        def wrapper(executor, wrapped, sigmas, extra_args, *args, **kwargs):
            asked = extra_args["model_options"]
            options = put(asked.get("transformer_options", {}))
            given = {**extra_args, "model_options": {**asked, "transformer_options": options}}
            return executor(wrapped, sigmas, given, *args, **kwargs)

        patched.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, "habit", wrapper)

    def call(self, patched, put):
        def wrapper(apply_model, given):
            options = put(given["c"]["transformer_options"])
            return apply_model(given["input"], given["timestep"], **{**given["c"], "transformer_options": options})

        patched.set_model_unet_function_wrapper(wrapper)

    def inside(self, patched, put):
        def wrapper(executor, *args, **kwargs):
            if "transformer_options" in kwargs:
                return executor(*args, **{**kwargs, "transformer_options": put(kwargs["transformer_options"])})
            place = next(place for place in reversed(range(len(args))) if "sigmas" in (args[place] or ()))
            return executor(*args[:place], put(args[place]), *args[place + 1 :], **kwargs)

        patched.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "habit", wrapper)

    def callback(self, patched, put):
        """Before each step."""

        def prepare(_patcher, _timestep, model_options):
            options = model_options.get("transformer_options", {})
            if not options.get("habit"):  # steps may share their options
                model_options["transformer_options"] = {**put(options), "habit": True}

        patched.add_callback_with_key(CallbacksMP.ON_PREPARE_STATE, "habit", prepare)
