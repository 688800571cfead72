"""What somebody sees who runs `python3 dev.py gpu` on a machine that we do not have: a page, or a sentence that says
what to do. Cards, nvidia-smi and torch's answers are pretended; what the ranks find is found by ranks on the CPU."""

from __future__ import annotations

import ast
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

import dev
from demo.host import REPOSITORY
from tests.support.labelled.tensors import GPU, on_gpu
from tests.support.ranks.cuda import quick_ranks
from tests.support.ranks.pool import RankPool
from tests.support.report import __main__ as program
from tests.support.report import machine, quick
from tests.support.report.plans_row import rows

GB = 1 << 30
OWN = "torch's flash_attention_for_cpu"
SMI = """#!/bin/sh
case "$1" in
  -L) {listed} ;;
  topo) echo "GPU0 X {links}" ;;
  --query-gpu=driver_version) echo {driver} ;;
esac
"""


# What AMD's and Intel's tools print of links, and AMD's of the driver.
OTHER_TOOLS = {
    "rocm-smi": """#!/bin/sh
case "$1" in
  --showdriverversion) echo "Driver version: {driver}" ;;
  *) echo "GPU1   {links}         0" ;;
esac
""",
    "xpu-smi": '#!/bin/sh\necho "GPU 0/0|S |{links} |"\n',
}


class Cards(NamedTuple):
    """A machine's cards. links: as the maker's tool says. reaches: whether they have peer-to-peer access. tool: of
    their maker."""

    name: str
    memory: int
    count: int = 1
    capability: tuple[int, int] = (8, 9)
    links: str = ""
    reaches: bool = True
    tool: str = "nvidia-smi"

    @property
    def properties(self) -> SimpleNamespace:
        """What torch says of each."""
        found: dict[str, Any] = {"name": self.name, "total_memory": self.memory * GB}
        if self.tool == "xpu-smi":
            return SimpleNamespace(**found, gpu_subslice_count=20, driver_version="1.6.33578")
        major, minor = self.capability
        arch = {"gcnArchName": "gfx942:sramecc+:xnack-"} if self.tool == "rocm-smi" else {}
        return SimpleNamespace(**found, **arch, major=major, minor=minor, multi_processor_count=128)


H100 = Cards("NVIDIA H100 80GB HBM3", 80, 2, (9, 0), "NV18")
RTX_4090 = Cards("NVIDIA GeForce RTX 4090", 24, 2, links="PHB", reaches=False)
MI300X = Cards("AMD Instinct MI300X", 192, 2, (9, 4), "XGMI", tool="rocm-smi")
ARC = Cards("Intel(R) Arc(TM) B580 Graphics", 12, 2, links="PHB", reaches=False, tool="xpu-smi")
MACHINES = {
    "2 H100": (H100, "“2, NVLink”"),
    "2 4090 without peer-to-peer": (RTX_4090, "“2, PCIe”"),
    "1 4090": (RTX_4090._replace(count=1), "One card"),
    "a laptop of 8 GB": (Cards("NVIDIA GeForce RTX 4060 Laptop GPU", 8), "One card"),
    "2 MI300X": (MI300X, "“2, NVLink”"),
    "2 Arc B580": (ARC, "“2, PCIe”"),
}
# Of each tool: torch's version that says what it is built for, what cards exchange by, and what has them use RAM.
BUILDS = {
    "nvidia-smi": ("cuda", "CUDA 13.0", "NCCL 2.27.3", "NCCL_P2P_DISABLE=1"),
    "rocm-smi": ("hip", "ROCm 13.0", "RCCL", "NCCL_P2P_DISABLE=1"),
    "xpu-smi": ("xpu", "XPU 13.0", "xccl", "CCL_TOPO_P2P_ACCESS=0"),
}
Put = Callable[..., None]


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Put:
    """Puts cards, a driver and a torch into this process."""

    def pretend(cards: Cards, works: bool = True) -> None:
        listed = "; ".join(f'echo "GPU {place}: {cards.name} (UUID: GPU-{place})"' for place in range(cards.count))
        tool = tmp_path / "bin" / cards.tool
        tool.parent.mkdir()
        said = OTHER_TOOLS.get(cards.tool, SMI)
        tool.write_text(said.format(listed=listed, links=cards.links, driver="580.65.06"))
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
        for version in ("cuda", "hip", "xpu"):
            release = "13.0" if version == BUILDS[cards.tool][0] else None
            monkeypatch.setattr(torch.version, version, release, raising=False)
        own = torch.xpu if cards.tool == "xpu-smi" else torch.cuda
        for module in (torch.cuda, torch.xpu):
            monkeypatch.setattr(module, "is_available", lambda module=module: works and module is own)
        monkeypatch.setattr(own, "device_count", lambda: cards.count if works else 0)
        monkeypatch.setattr(own, "get_device_properties", lambda _card: cards.properties)
        monkeypatch.setattr(own, "can_device_access_peer", lambda *_: cards.reaches, raising=False)
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))

    return pretend


@pytest.fixture(scope="module")
def found(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], str]:
    """What two ranks on the CPU find, and that they do not fail."""
    out = tmp_path_factory.mktemp("quick") / "found.jsonl"
    ranks.run(2, "cuda.quick_ranks", "cpu", str(out))
    return quick.read(out), ""


def quick_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: tuple[list[dict], str]) -> tuple[int, str]:
    monkeypatch.setattr(quick, "run_ranks", lambda *_: found)
    code = quick.main(["--out", str(tmp_path / "page.md")])
    return code, (tmp_path / "page.md").read_text()


def test_two_ranks_answer_the_three_questions(found: tuple[list[dict], str]) -> None:
    results, said = found
    assert not said
    assert [each["plan"] for each in results if "plan" in each] == ["ulysses=2", "ring=2", "cfg=2"]
    assert all(each["error"] <= quick.EXACT["fp32"] for each in results if "plan" in each)
    assert all(each["seconds"] > 0 < each["faster"] for each in results if "plan" in each)
    (kernels,) = (each["kernels"] for each in results if "kernels" in each)
    assert kernels == [f"rank {rank}, fp32: {OWN}; under ring {OWN}" for rank in range(2)]
    (links,) = (each["links"] for each in results if "links" in each)
    assert min(rate for rate, _ in (links[kind] for kind in ("all_to_all", "all_gather", "send"))) > 0


@pytest.mark.parametrize(
    ("capability", "dtype", "kernel"),
    [
        ((7, 5), torch.float16, "efficient_attention"),
        ((7, 5), torch.bfloat16, "matrix products"),
        ((8, 9), torch.bfloat16, "flash_attention"),
    ],
    ids=str,
)
def test_the_kernel_of_a_card_is_the_one_that_runs(
    capability: tuple[int, int], dtype: torch.dtype, kernel: str
) -> None:
    """With labelled tensors in place of the card, and without a flash package."""
    with on_gpu(counts_memory=False, capability=capability):
        assert [quick_ranks.kernel(dtype, GPU, ring) for ring in (1, 2)] == [f"torch's {kernel}"] * 2


@pytest.mark.parametrize("name", MACHINES)
def test_the_quick_page_has_what_the_table_of_plans_predicts_beside_what_is_measured(
    name: str, put: Put, found: tuple[list[dict], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cards, row = MACHINES[name]
    put(cards)
    code, page = quick_page(monkeypatch, tmp_path, found)
    assert code == 0
    _, built, library, setting = BUILDS[cards.tool]
    assert f"({built})" in page and f", {library}\n" in page and "driver unknown" not in page
    assert f"{cards.name}, {cards.memory}.0 GB" in page and f"GPU {cards.count - 1}" in page
    for section in (
        "Does it run?\n\nYes",
        "Is it exact?\n\nYes.",
        "How much faster?\n\n- ulysses=2: ×",
        f"Attention\n\n- rank 0, fp32: {OWN}; under",
        "Links\n\n- all",
    ):
        assert f"## {section}" in page
    assert row in page
    assert ("RAM" in page and setting in page) == (cards.count > 1 and not cards.reaches)
    assert cards.links in page
    assert page.count("One card: docs/plans.md") == (cards.count == 1)


def test_ranks_that_fail_or_hang_end_in_a_page_that_says_what_to_try(
    put: Put, found: tuple[list[dict], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(RTX_4090)
    code, page = quick_page(monkeypatch, tmp_path, (found[0][:1], "NCCL error: unhandled system error"))
    assert code == 1
    assert "No:\n\n```\nNCCL error" in page and "try NCCL_P2P_DISABLE=1" in page
    wrong = [{**each, "error": 0.1} if "plan" in each else each for each in found[0]]
    code, page = quick_page(monkeypatch, tmp_path, (wrong, ""))
    assert code == 1 and "## Is it exact?\n\nNo." in page


@pytest.mark.parametrize("main", (program.main, quick.main), ids=("whole", "quick"))
def test_without_a_usable_gpu_a_line_says_what_torch_is_and_what_the_driver_lists(
    main: Callable[[list[str]], int], put: Put, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(RTX_4090, works=False)
    monkeypatch.setenv("COMFYUI_PATH", "anywhere")
    assert main([]) == 2
    out, said = capsys.readouterr()
    assert not out and said.count("\n") == 1 and "(CUDA 13.0)" in said and "nvidia-smi lists 2" in said


def test_the_whole_report_sends_intels_users_to_the_quick_one(
    put: Put, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(ARC)
    monkeypatch.setenv("COMFYUI_PATH", "anywhere")
    assert program.main([]) == 2
    assert "run `python -m tests.support.report.quick`" in capsys.readouterr().err


def test_the_row_is_one_of_the_pages() -> None:
    assert {"2, PCIe", "2, NVLink", "4", "8", "mixed"} <= rows().keys()


def test_the_quick_form_needs_neither_comfyui_nor_its_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its set-up installs torch and requirements.txt; its programs import nothing else."""
    done: list[str] = []
    setup = types.SimpleNamespace(torch="torch", given=None, installed=lambda _name: "2.13.0")
    for name in ("make_venv", "install", "fetch", "install_requirements", "install_engine"):
        setattr(setup, name, lambda *_, name=name: done.append(name))
    monkeypatch.setattr(dev, "check_own_folders", lambda: None)
    monkeypatch.setattr(dev, "step", lambda _title, _stamp, _inputs, action: action())
    dev.Setup.run(setup, engine_alone=True)  # ty: ignore
    assert done == ["make_venv", "install", "install_engine"]
    loaded = imported("tests.support.report.quick") | imported("tests.support.ranks.cuda.quick_ranks")
    assert {"diffusers", "torch", "parallel_backend"} <= loaded
    assert loaded <= {"diffusers", "torch", "parallel_backend", "tests", *sys.stdlib_module_names}


def imported(module: str) -> set[str]:
    """The packages that a module of the tests imports, with those that other modules of the tests import for it."""
    path = REPOSITORY / f"{module.replace('.', '/')}.py"
    if not path.exists():  # a package, or a name in a module
        return set()
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{each.name}" for each in node.names)}
    further = [imported(name) for name in found if name.startswith("tests.")]
    return {name.partition(".")[0] for name in found}.union(*further)


def test_a_small_room_for_shared_memory_is_told_of(monkeypatch: pytest.MonkeyPatch, put: Put) -> None:
    put(H100)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: SimpleNamespace(total=64 << 20))
    assert any("--ipc=host" in hint for hint in machine.hints(machine.links("cuda"), "cuda"))
