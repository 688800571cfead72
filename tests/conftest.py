"""What the tests share: model folders with tiny seeded weights, and a real ComfyUI that runs this pack."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from playwright.sync_api import Browser
from safetensors.torch import save_file

from demo.host import PACK_NAME, REPOSITORY, ComfyHost
from tests.support import tiers
from tests.support.cases.families import FAMILIES
from tests.support.editor import groups
from tests.support.editor.editor import browser_path, open_browser
from tests.support.group.footprint import settings_that_free
from tests.support.group.machines import Network, open_network
from tests.support.host import graphs
from tests.support.host.graphs import TINY_MODELS, write_packs
from tests.support.host.quick_machine import quick_machine
from tests.support.ranks.pool import RankPool
from tests.support.runs import disk, durations
from worker.host.client import WorkerGroup
from worker.launch.imports import pause_garbage_collector

# On some CPUs MKL's products differ by rounding with where a tensor lies in memory, and what is to have the same bits
# would not have them. Read at the first product, here and in every process that the tests start.
os.environ["MKL_CBWR"] = "AUTO,STRICT"
# A process that wakes up does not interrupt one that computes. Every process that the tests start inherits this. A rank
# that is interrupted while it sends holds a lock, for which a thread of gloo's then asks without a pause.
if sys.platform == "linux":
    with contextlib.suppress(OSError):  # a sandbox may know no policies
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
DEMO_MODEL = REPOSITORY / "demo" / "shapes-dit"
# Node packs of the tests' own, by the name of their folder.
NODE_PACKS = {
    **graphs.NODE_PACKS,
    groups.PACK: groups.PACK_SOURCE,
    "narrow_encoders": (Path(__file__).parent / "support" / "host" / "narrow_encoders.py").read_text(),
}
# Four ranks and more, however few cores there are; auto stays at two, for which links cost nothing.
HOST_ENV = {"PARALLELDIT_CPU_RANKS": "8", "PARALLELDIT_MEASURED": quick_machine(), **TINY_MODELS}
EXTRA_ARGS = ("--whitelist-custom-nodes", PACK_NAME, *NODE_PACKS, "--preview-method", "latent2rgb")
DIT_LABELS = (
    "tench, Tinca tinca",
    "goldfish, Carassius auratus",
    "great white shark, white shark, man-eater, man-eating shark, Carcharodon carcharias",
    "tiger shark, Galeocerdo cuvieri",
    "hammerhead, hammerhead shark",
    "electric ray, crampfish, numbfish, torpedo",
    "stingray",
    "cock",
    "hen",
    "ostrich, Struthio camelus",
)
# The schedule that DiT-XL/2 was trained with, as its scheduler_config.json says it.
LINEAR_BETAS = {
    "_class_name": "DDIMScheduler",
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "beta_start": 0.0001,
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
    "set_alpha_to_one": True,
    "steps_offset": 0,
    "trained_betas": None,
}
# The schedules by which ComfyUI samples the others' files.
SD3_SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}
FLUX_SCHEDULER = {**SD3_SCHEDULER, "shift": math.exp(1.15)}
PIPELINES = {
    "tiny-dit": ("dit", {"_class_name": "DiTPipeline", "id2label": {str(i): n for i, n in enumerate(DIT_LABELS)}}),
    "tiny-sd3": ("sd3.5", {"_class_name": "StableDiffusion3Pipeline"}),
    "tiny-flux": ("flux-dev", {"_class_name": "FluxPipeline"}),
}
SCHEDULERS = {"tiny-sd3": SD3_SCHEDULER, "tiny-flux": FLUX_SCHEDULER}
# In proportions that ComfyUI detects. Its latents of SD3 and Flux have 16 channels, of which Flux packs patches of 2×2.
SIZES = {
    "tiny-sd3": {
        **{"in_channels": 16, "out_channels": 16, "num_layers": 4, "num_attention_heads": 4},
        **{"attention_head_dim": 64, "caption_projection_dim": 256},
    },
    "tiny-flux": {
        **{"in_channels": 64, "num_attention_heads": 2, "attention_head_dim": 128, "axes_dims_rope": (16, 56, 56)}
    },
}

LEFT_OUT = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--fast", action="store_true", help="run only the tests without ranks, ComfyUI or a browser")
    group.addoption("--slow", action="store_true", help="run the tests that are marked slow, too")
    group.addoption("--keep-durations", action="store_true", help="write what each file takes to tests/durations.json")
    group.addoption("--device", choices=("cuda", "cpu"), default="cuda", help="where tests marked gpu compute")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast") and config.getoption("--slow"):
        raise pytest.UsageError("--fast leaves out what --slow adds: give one of them")
    if config.getoption("--keep-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(durations.Recorder())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> durations.LongestFirst | None:
    if config.getoption("dist") != "loadfile":
        return None
    seconds: Counter[str] = Counter()
    for tier in durations.TIERS if config.getoption("--slow") else durations.TIERS[:1]:
        seconds.update({path: found.seconds for path, found in durations.read(tier).items()})
    return durations.LongestFirst(config, log, seconds)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    with pause_garbage_collector():  # the modules and tests that it finds stay, and are not scanned later
        return (yield)


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[LEFT_OUT] = tiers.select(config, items)
    if hasattr(config, "workeroutput"):  # one of several processes, each of which has selected alike
        config.workeroutput["left out"] = config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over, from one of several processes, what is said at the end."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", "")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if said := terminalreporter.config.stash.get(LEFT_OUT, ""):
        terminalreporter.write_line(said)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> disk.TemporaryFolders:
    """Where a fixture of the whole session gets a folder that lasts as long."""
    return disk.TemporaryFolders(tmp_path_factory)


@pytest.fixture(scope="module", autouse=True)
def cleared(request: pytest.FixtureRequest, folders: disk.TemporaryFolders) -> Iterator[None]:
    """At a test file's end, removes what it has written, if all of its tests passed."""
    failed = request.session.testsfailed
    yield
    folders.end_file(failed=request.session.testsfailed > failed)


@pytest.fixture
def one_rank() -> Iterator[None]:
    """This process is the only rank of gloo's group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def ranks(folders: disk.TemporaryFolders) -> Iterator[RankPool]:
    """Runs programs of tests/support/ranks on as many ranks as asked for."""
    with RankPool(folders.lasting("ranks")) as pool:
        yield pool


@pytest.fixture(scope="session")
def labelled_ranks(folders: disk.TemporaryFolders) -> Iterator[RankPool]:
    """Likewise for programs on labelled tensors, which have no inference mode: nothing else is to run there."""
    with RankPool(folders.lasting("labelled-ranks")) as pool:
        yield pool


@pytest.fixture(scope="session")
def own_ranks() -> None:
    """To be asked for by what starts ranks of its own: that is how they are known to be no fast tests."""


@pytest.fixture(scope="module")
def network(own_ranks: None) -> Iterator[Network]:
    """The networks of two machines."""
    with open_network() as network:
        yield network


@pytest.fixture(scope="session")
def group_of_two(own_ranks: None, folders: disk.TemporaryFolders) -> Iterator[WorkerGroup]:
    """One worker group of two ranks for every test that leaves it alive, whatever model and plan is loaded."""
    folder = folders.lasting("group")
    group = WorkerGroup("cpu", folder / "logs", settings_that_free(folder))
    yield group
    group.stop()


@pytest.fixture(scope="session")
def comfyui() -> Path:
    """The ComfyUI that the tests drive."""
    path = os.environ.get("COMFYUI_PATH")
    if not path or not (Path(path) / "main.py").is_file():
        pytest.fail(
            f"COMFYUI_PATH is {path!r}; set it to a folder with ComfyUI's main.py, or run `python3 dev.py test`, "
            "which sets one up."
        )
    return Path(path)


@pytest.fixture(scope="session")
def models(folders: disk.TemporaryFolders) -> Path:
    """A base folder for ComfyUI: tiny models in the published layouts, and files for the test-only node."""
    base = folders.lasting("base")
    diffusers = base / "models" / "diffusers"
    (base / "models" / "diffusion_models").mkdir(parents=True)
    for name, (family, pipeline) in PIPELINES.items():
        write_pipeline(diffusers / name, family, pipeline)
        if name != "tiny-dit":  # for the stock loader; the folder says what diffusers makes of it
            shutil.copy(diffusers / name / WEIGHTS, base / "models" / "diffusion_models" / f"{name}.safetensors")
    shutil.copytree(DEMO_MODEL, diffusers / "shapes-dit")  # a copy, so that training does not change it under us
    (base / "models" / "loras").mkdir()
    write_packs(base, NODE_PACKS)
    (base / "input").mkdir()
    width = FAMILIES["sd3.5"].config["joint_attention_dim"]
    generator = torch.Generator().manual_seed(5)
    for name, tokens in (("text", 12), ("other-text", 12), ("short-text", 5)):
        text = torch.randn(1, tokens, width, generator=generator)
        pooled = torch.randn(1, 16, generator=generator)
        save_file({"conditioning": text, "pooled": pooled}, base / "input" / f"{name}.safetensors")
    folders.share(base / "models")
    folders.share(base / "input")
    return base


def write_pipeline(folder: Path, family: str, pipeline: dict) -> None:
    """A diffusers pipeline folder: model_index.json, transformer, scheduler."""
    FAMILIES[family].of_config(**SIZES.get(folder.name, {})).save(folder / "transformer")
    (folder / "model_index.json").write_text(json.dumps(pipeline, indent=2))
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text(
        json.dumps(SCHEDULERS.get(folder.name, LINEAR_BETAS), indent=2)
    )


@pytest.fixture(scope="session")
def host(comfyui: Path, models: Path) -> Iterator[ComfyHost]:
    """One ComfyUI for every test that leaves it whole. More of them kill ranks than a group forgives by default."""
    with ComfyHost(comfyui, models, extra_args=EXTRA_ARGS, env={"PARALLELDIT_RESTARTS": "1000", **HOST_ENV}) as host:
        yield host


def own_base_in(folder: Path, models: Path) -> Path:
    """Makes the folder a base folder with the same models, for a host of a test's own."""
    (folder / "models").symlink_to(models / "models", target_is_directory=True)
    (folder / "input").symlink_to(models / "input", target_is_directory=True)
    for name in NODE_PACKS:
        shutil.copytree(models / "custom_nodes" / name, folder / "custom_nodes" / name)
    return folder


@pytest.fixture
def own_base(models: Path, tmp_path: Path) -> Path:
    """A base folder with the same models, for a host of the test's own."""
    return own_base_in(tmp_path, models)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if browser_path() is None:
        pytest.fail("no Chromium on the PATH: install one (on Debian: apt-get install chromium), or set CHROMIUM to it")
    with open_browser() as browser:
        yield browser
