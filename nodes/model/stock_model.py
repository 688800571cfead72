"""ComfyUI's own model in place of the ranks: it runs here what they cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import comfy.model_management
from comfy.patcher_extension import WrappersMP

from ...worker.comfyui.call_keys import OPTIONS
from ...worker.errors import Explanation, NoWorkerGroup
from ...worker.settings import REFUSE
from ...worker.wire.operations import FORWARD, INNER
from ..errors import Refused
from ..inside.replaced_methods import ReplacedMethods
from ..inside.sharing import join
from .local_weights import LocalWeights
from .planned_module import PlannedModule
from .sampling import warn

Patcher = Any  # a RemoteModelPatcher, whose module imports this one


@dataclass(eq=False)
class StockModel:
    """Takes a module over from the ranks, and gives it back.

    weights: of the module. stand_ins: its methods that become requests to the ranks. is_active: whether it runs in
    place of the ranks. why: the reason, in words."""

    planned: PlannedModule
    weights: LocalWeights
    stand_ins: Mapping[str, Any]
    replaced_methods: ReplacedMethods
    is_active: bool = False
    why: str = ""

    def take_over(
        self,
        reasons: Sequence[str],
        patcher: Patcher | None,
        load: bool = False,
        needs_ranks: bool = False,
        down: Explanation | None = None,
    ) -> None:
        """Fills the module with the file's weights, so that it is ComfyUI's own model and computes here from now on.

        reasons: what the ranks cannot run. patcher: the one of the following calls. load: whether ComfyUI has already
        loaded it, but without weights. needs_ranks: whether only the ranks can run the sampling. down: why there are no
        ranks. Raises Refused or NoWorkerGroup if the settings ask for an error instead, and ModelFileError."""
        why = join(reasons)
        if needs_ranks or self.planned.group.settings.when_not_parallel == REFUSE:
            if down:
                raise NoWorkerGroup(*down)
            raise Refused(
                f"The parallel model cannot honour {why}: its inside runs in worker processes.",
                "Remove that node, or bypass Parallelize Model.",
            )
        self.why = self.planned.explain_stock(why, down)
        self.planned.group.runs.note(reason=self.why, is_stock=True)
        warn(self.why)
        if self.is_active:
            return self.weights.put_numbers()
        self.planned.free()
        replaced = self.weights.take_replaced() if load else {}
        self.weights.bring()
        self.is_active = True
        self.remove_stand_ins()
        if patcher:
            hooks = patcher.current_hooks
            patcher.forget_load()
            if load:
                comfy.model_management.load_models_gpu([patcher, *patcher.model_patches_models()])
                patcher.apply_hooks(hooks)  # of the running call; the load has dropped them
        self.weights.put_replaced(replaced)

    def remove_stand_ins(self) -> None:
        """Leaves the module its own methods, or those that nodes have put in their place."""
        for name in [name for name, method in self.stand_ins.items() if vars(self.planned.module).get(name) is method]:
            del vars(self.planned.module)[name]

    def give_back(self, patcher: Patcher) -> bool:
        """Makes the ranks compute from now on. Returns False if only the weights here are those that nodes wrote."""
        if self.is_active:
            patcher.unload_here()
            if self.weights.find_written():
                return False
            self.weights.drop()
            self.is_active, self.why = False, ""
            vars(self.planned.module).update(self.stand_ins)
        return True

    def run(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Runs a call of the model, around which the nodes' wrappers already run."""
        if name := self.replaced_methods.restore():
            return getattr(self.planned.module, name)(*args, **kwargs)
        self.remove_stand_ins()
        if INNER in self.stand_ins:
            return getattr(self.planned.module, INNER)(*args, **kwargs)
        bound = self.replaced_methods.signatures[FORWARD].bind(*args, **kwargs)
        if options := bound.arguments.get(OPTIONS):
            wrappers = {**options.get("wrappers", {}), WrappersMP.DIFFUSION_MODEL: {}}
            bound.arguments[OPTIONS] = {**options, "wrappers": wrappers}
        return self.planned.module.forward(*bound.args, **bound.kwargs)
