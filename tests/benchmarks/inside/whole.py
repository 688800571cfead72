"""Whether node packs that run code between a model's blocks give the same with Parallelize Model, and under which plan.

python -m tests.benchmarks.inside.whole COMFYUI PACKS [CASE...]

PACKS is a folder of clones, such as ComfyUI's custom_nodes. Each case runs on a tiny model as stock, and on two ranks
under ulysses=2 and under auto. It prints the relative error, the plan, how many of the steps a cache left out in both,
what the node does to stock's image, and why another plan ran.

Some packs are older than ComfyUI, which gives their functions more arguments or lacks a name that they import. MENDS
has them accept it, in the copies that run.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from tests.benchmarks.inside.packs import load
from tests.support.cases.host.base import fill_weights
from tests.support.census.program import Census
from tests.support.census.rows import Row, equal
from tests.support.host.graphs import TINY_MODELS
from tests.support.host.stock_prompts import write_cases
from tests.support.ranks.leaving import end

STEPS = 16
# As on GPUs. The attention that ComfyUI has on a CPU adds a mask of truth values as numbers.
ATTENTION = "--use-pytorch-cross-attention"
PLANS: tuple[dict[str, int], ...] = ({"ulysses": 2}, {})
MENDS = {
    r"attn_mask: Tensor = None,?\s*\)": "attn_mask: Tensor = None, **_more)",
    r"(?m)^from comfy\.ldm\.lightricks\.model import precompute_freqs_cis$": "",
}
COUNTED = ("double_block", 1)  # a block that a cache leaves out


def teacache(kind: str, threshold: float) -> Callable[[Any, Any, Any], Any]:
    def patched(module: Any, _census: Any, model: Any) -> Any:
        return module.TeaCache().apply_teacache(model, kind, threshold, 0.0, 1.0, "cpu")[0]

    return patched


def first_block(threshold: float, hits: int = -1) -> Callable[[Any, Any, Any], Any]:
    def patched(module: Any, _census: Any, model: Any) -> Any:
        return module.ApplyFBCacheOnModel().patch(model, "diffusion_model", threshold, hits)[0]

    return patched


def identify(is_masked: bool) -> Callable[[Any, Any, Any], Any]:
    """PuLID with attention to a face in some blocks, of random weights in a file, as its nodes would set it up."""

    def patched(module: Any, census: Any, model: Any) -> Any:
        wrappers = importlib.import_module("comfy.patcher_extension").WrappersMP
        encoders, keys = (sibling(module, name) for name in ("encoders_flux", "patch_util"))
        sizes = {"dim": 64, "dim_head": 64, "heads": 4, "kv_dim": 32}
        network, file = torch.nn.Module(), census.base / "pulid.safetensors"
        network.pulid_ca = torch.nn.ModuleList([encoders.PerceiverAttentionCA(**sizes) for _ in range(4)])
        if not file.exists():
            fill_weights(network)
            save_file(network.state_dict(), file)
        network.load_state_dict(importlib.import_module("comfy.utils").load_torch_file(str(file)))
        mask = torch.linspace(0, 1, 64).expand(1, 64, 64) if is_masked else None
        embedding = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(6))
        given = {"pulid_model": census.patcher(network), "weight": 1.0, "embedding": embedding, "mask": mask}
        given |= {"sigma_start": 1e9, "sigma_end": 0.0}
        changed = model.clone()
        places = {("double_block", 0): module.DitDoubleBlockReplace}
        places |= {("double_block", 1): module.LastDitDoubleBlockReplace}
        places |= {("single_block", number): module.DitSingleBlockReplace for number in (0, 2)}
        for number, ((kind, block), cls) in enumerate(places.items()):
            found = cls(module.pulid_patch, **given, ca_idx=number)
            changed.set_model_patch_replace(found, "dit", kind, block)

        def sample(run: Any, noise: Any, latent: Any, *args: Any, **options: Any) -> Any:
            held = keys.add_model_patch_option(run.class_obj, keys.PatchKeys.pulid_patch_key_attrs)
            held["latent_image_shape"] = latent.shape
            flux = model.model.diffusion_model
            with patch.object(flux, "forward_orig", types.MethodType(module.pulid_forward_orig, flux)):
                return run(noise, latent, *args, **options)

        def apply(run: Any, x: Any, t: Any, c_concat: Any, text: Any, control: Any, options: Any, **more: Any) -> Any:
            base = run.class_obj
            times = base.model_sampling.timestep(t).float()
            options[keys.PatchKeys.pulid_patch_key_attrs]["timesteps"] = times
            options[keys.PatchKeys.running_net_model] = base.diffusion_model
            return run(x, t, c_concat, text, control, options, **more)

        changed.add_wrapper_with_key(wrappers.OUTER_SAMPLE, "pulid", sample)
        changed.add_wrapper_with_key(wrappers.APPLY_MODEL, "pulid", apply)
        return changed

    return patched


def derive(module: Any, _census: Any, model: Any) -> Any:
    """Fluxtapoz's classes of the whole model and of its blocks."""
    return module.ConfigureModifiedFluxNode().apply(model)[0]


def divide(module: Any, census: Any, model: Any) -> Any:
    """A text of its own for a half of the picture, in every second block."""
    nodes, (text, _) = sibling(module, "regional_cond_nodes"), census.conditioning("flux", "negative")[0]
    mask = torch.zeros(1, 64, 64)
    mask[..., 32:] = 1
    (regions,) = nodes.CreateRegionalCondNode().create([[text, {}]], mask)
    latent = census.latent(equal("flux"))
    places = {"double": [1], "single": [0, 2]}
    return nodes.ApplyRegionalCondsNode().patch(derive(module, census, model), regions, latent, 0.0, 0.7, places)[0]


def sibling(module: Any, name: str) -> Any:
    return importlib.import_module(f"{module.__package__}.{name}")


class Case(NamedTuple):
    """file: of the pack, which has the node. counts: whether a step that is left out can be counted. tokens: of the
    text, if not the model's."""

    file: str
    patched: Callable[[Any, Any, Any], Any]
    row: Row
    counts: bool = True
    tokens: int = 0


def sampled(model: str, cfg: float) -> Row:
    return replace(equal(model), cfg=cfg, steps=STEPS)


TEACACHE, WAVESPEED, PULID = "ComfyUI-TeaCache/nodes", "Comfy-WaveSpeed/fbcache_nodes", "PulidFluxHook"
FLUXTAPOZ = "nodes/configure_modified_flux_node"
CASES: dict[str, Case] = {
    "TeaCache on Flux": Case(TEACACHE, teacache("flux", 1.0), sampled("flux", 1.0)),
    "TeaCache on Flux, cfg 3": Case(TEACACHE, teacache("flux", 1.0), sampled("flux", 3.0)),
    "TeaCache on Wan": Case(TEACACHE, teacache("wan2.1_t2v_1.3B", 1000.0), sampled("wan", 3.0)),
    "WaveSpeed on Flux": Case(WAVESPEED, first_block(0.5), sampled("flux", 1.0)),
    "WaveSpeed on Flux, one hit at most": Case(WAVESPEED, first_block(0.8, 1), sampled("flux", 3.0)),
    "WaveSpeed on SD3": Case(WAVESPEED, first_block(1.0), sampled("sd3", 3.0), counts=False),
    "WaveSpeed on LTX-Video": Case(WAVESPEED, first_block(0.5), sampled("ltx", 3.0), counts=False),
    "WaveSpeed on a UNet": Case(WAVESPEED, first_block(0.2), sampled("unet", 3.0), counts=False),
    "PuLID on Flux": Case(PULID, identify(False), sampled("flux", 1.0), counts=False),
    "PuLID on Flux, with a mask": Case(PULID, identify(True), sampled("flux", 3.0), counts=False),
    "Fluxtapoz's Flux": Case(FLUXTAPOZ, derive, sampled("flux", 3.0), counts=False),
    "Fluxtapoz's Flux with regions": Case(FLUXTAPOZ, divide, sampled("flux", 1.0), counts=False, tokens=256),
}


def mend(packs: Path) -> None:
    for file in packs.glob("*/*.py"):
        text = found = file.read_text()
        for pattern, instead in MENDS.items():
            text = re.sub(pattern, instead, text)
        if text != found:
            print(f"{file.relative_to(packs)} is mended")
            times = file.stat()
            file.write_text(text)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # older than this process


def find(packs: Path, file: str) -> Path | None:
    """The folder of the pack with a file, which is named by its path in the packs' folder or in the pack's."""
    found = sorted(path for form in (f"{file}.py", f"*/{file}.py") for path in packs.glob(form))
    return packs / found[0].relative_to(packs).parts[0] if found else None


def measure(census: Census, name: str, case: Case, pack: Path, plan: dict[str, int]) -> None:
    own = census.nodes.NODE_CLASS_MAPPINGS["PatchHabit"].__module__
    patches, scales = (sys.modules[own.replace("patch_habits", each)] for each in ("patches", "scale"))
    ran: list[int] = []

    def does(census: Census, row: Row, model: Any) -> list[torch.Tensor]:
        patched = case.patched(load(pack, case.file.removeprefix(f"{pack.name}/").replace("/", ".")), census, model)
        if case.counts:
            patched = patched.clone()
            patched.set_model_patch_replace(patches.counted_block, "dit", *COUNTED)
        before = scales.CALLS["count"]
        text, options = census.conditioning(row.model, "positive")[0]
        text = text.repeat(1, -(-case.tokens // text.shape[1]), 1)[:, : case.tokens] if case.tokens else text
        found = census.sample(row, patched, positive=[[text, options]])
        ran.append(scales.CALLS["count"] - before)
        return [found]

    found = census.outcome(name, replace(case.row, plan=plan, does=does))
    error = found.get("error", found.get("raised"))
    skipped = f"left out: {[STEPS - each for each in ran]} of {STEPS} (stock, ours)" if case.counts else ""
    said = [f"effect {found.get('effect', found.get('stock raised'))}", skipped, *found["replaced"], *found["why"]]
    shown = "as stock" if found["as stock"] else found["plan"]
    print(f"{name}, {plan or 'auto'}: {error} under {shown}", *filter(None, said), sep="\n  ", flush=True)


def main(comfyui: str, packs: str, *only: str) -> None:
    if not TINY_MODELS.items() <= os.environ.items():  # which a process reads when it starts
        command = [sys.executable, "-m", "tests.benchmarks.inside.whole", comfyui, packs, *only]
        os.execve(sys.executable, command, {**os.environ, **TINY_MODELS})
    cases = {name: case for name, case in CASES.items() if not only or name in only}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_cases(Path(comfyui), base, {case.row.model for case in cases.values()})
        shutil.copytree(packs, base / "custom_nodes", ignore=shutil.ignore_patterns(".git"))
        mend(base / "custom_nodes")
        shutil.copytree(Path(__file__).parents[2] / "support" / "habit_pack", base / "custom_nodes" / "habit_pack")
        census = Census(comfyui, folder, ATTENTION)
        try:
            for name, case in cases.items():
                pack = find(base / "custom_nodes", case.file)
                for plan in PLANS if pack else ():
                    measure(census, name, case, pack, plan)
        finally:
            census.group.stop()
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
