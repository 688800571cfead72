"""A node pack that changes the inside of a model in the ways of real packs. Tests put it among ComfyUI's packs."""
# ruff: noqa: E402

TIMES = 1.05  # first, as node packs do: their modules import it from here

from server import PromptServer

from .habits import HABITS, Habit
from .nodes import NODE_CLASS_MAPPINGS as NODES
from .patch_habits import PatchHabit
from .routes import louder_beside_routes

ROUTES = PromptServer.instance.routes  # a rank has no server: this file is not run there


def louder_in_init(_module, _args, output):
    return 1.1 * output if hasattr(output, "shape") else tuple(1.1 * each for each in output)


HABITS["a function beside routes"] = Habit(lambda model: model.set_hook(louder_beside_routes))
HABITS["a function of the package itself"] = Habit(lambda model: model.set_hook(louder_in_init))

NODE_CLASS_MAPPINGS = {**NODES, "PatchHabit": PatchHabit}
__all__ = ["NODE_CLASS_MAPPINGS"]
