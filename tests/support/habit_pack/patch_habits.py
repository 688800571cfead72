"""The ways in which node packs put functions at ComfyUI's places for them, by model, and the node that does."""

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from comfy.patcher_extension import CallbacksMP, WrappersMP

from . import patches
from .habits import set_strength

# By habit and model, what goes where: the name of a list of patches and a function; or the name, a place and a function
# that takes its place.
FLUX, WAN, SD3, Z_IMAGE, UNET = "flux", "wan", "sd3-dual", "zimage", "unet"
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
CHUNKED = "a feed-forward in chunks"
FEED_FORWARD = {WAN: "blocks.0.ffn", Z_IMAGE: "layers.0.feed_forward"}
BY_MODEL = {**{name: list(models) for name, models in HABITS.items()}, CHUNKED: list(FEED_FORWARD)}
MOMENTS = ("begin", "sampling", "call", "inside", "callback")


def put(options, habit, model):
    """Puts a habit's functions into a call's options. What others have put there stays as it is."""
    for name, *place, function in HABITS[habit][model]:
        key = "patches_replace" if place else "patches"
        options[key] = found = dict(options.get(key, {}))
        if place:
            found[name] = {**found.get(name, {}), place[0]: function}
        else:
            found[name] = [*found.get(name, []), function]


@contextmanager
def chunked(module, model):
    part = module.get_submodule(FEED_FORWARD[model])
    with ExitStack() as undo:
        undo.enter_context(patch.object(part, "forward", patches.Chunked(part.forward, 3)))
        yield


class PatchHabit:
    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL",),
                "habit": (list(BY_MODEL),),
                "of": ("STRING",),
                "moment": (MOMENTS,),
            }
        }

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "tests"

    def patch(self, model, habit, of, moment):
        set_strength(1.2)
        patched = model.clone()
        getattr(self, moment)(patched, habit, of)
        return (patched,)

    def begin(self, patched, habit, of):
        if habit == CHUNKED:
            path = f"diffusion_model.{FEED_FORWARD[of]}.forward"
            patched.add_object_patch(path, patches.Chunked(patched.get_model_object(path), 3))
        else:
            put(patched.model_options["transformer_options"], habit, of)

    def around(self, patched, habit, of, run, options):
        """Runs a part of the sampling with the habit."""
        if habit == CHUNKED:
            with chunked(patched.model.diffusion_model, of):
                return run(options)
        options = dict(options)
        put(options, habit, of)
        return run(options)

    def sampling(self, patched, habit, of):
        def wrapper(executor, wrapped, sigmas, extra_args, *args, **kwargs):
            asked = extra_args["model_options"]

            def run(options):
                given = {**extra_args, "model_options": {**asked, "transformer_options": options}}
                return executor(wrapped, sigmas, given, *args, **kwargs)

            return self.around(patched, habit, of, run, asked.get("transformer_options", {}))

        patched.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, "habit", wrapper)

    def call(self, patched, habit, of):
        def wrapper(apply_model, given):
            def run(options):
                return apply_model(given["input"], given["timestep"], **{**given["c"], "transformer_options": options})

            return self.around(patched, habit, of, run, given["c"]["transformer_options"])

        patched.set_model_unet_function_wrapper(wrapper)

    def inside(self, patched, habit, of):
        def wrapper(executor, *args, **kwargs):
            if "transformer_options" in kwargs:
                return self.around(
                    patched, habit, of, lambda options: executor(*args, **{**kwargs, "transformer_options": options}),
                    kwargs["transformer_options"],
                )  # fmt: skip
            place = next(place for place in reversed(range(len(args))) if "sigmas" in (args[place] or ()))
            return self.around(
                patched, habit, of, lambda options: executor(*args[:place], options, *args[place + 1 :], **kwargs),
                args[place],
            )  # fmt: skip

        patched.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "habit", wrapper)

    def callback(self, patched, habit, of):
        """Before each step. What is put into the module is taken back behind the sampling."""
        undo = ExitStack()

        def prepare(_patcher, _timestep, model_options):
            if habit != CHUNKED:
                options = model_options["transformer_options"] = dict(model_options.get("transformer_options", {}))
                if not options.get("habit"):  # steps may share their options
                    put(options, habit, of)
                    options["habit"] = True
            elif "forward" not in vars(patched.model.diffusion_model.get_submodule(FEED_FORWARD[of])):
                undo.enter_context(chunked(patched.model.diffusion_model, of))

        patched.add_callback_with_key(CallbacksMP.ON_PREPARE_STATE, "habit", prepare)
        patched.add_callback_with_key(CallbacksMP.ON_CLEANUP, "habit", lambda _patcher: undo.close())
