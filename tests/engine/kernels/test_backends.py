"""The attention backend of a plan is the one that computes, and one that cannot is refused before anything starts."""

from __future__ import annotations

import sys
import types
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from diffusers.models import attention_dispatch
from diffusers.utils import import_utils
from packaging.version import Version
from torch.nn.attention import SDPBackend

from demo.host import REPOSITORY
from parallel_backend import apply_plan, parallelize, unparallelize
from parallel_backend.errors import PlanError
from parallel_backend.groups.mesh import Mesh, build_mesh
from parallel_backend.plan import ATTENTION, ParallelPlan
from parallel_backend.seams.attention_op import attention_op, plain_attention
from parallel_backend.seams.exchange.ring import merge
from parallel_backend.seams.kernels import backends
from parallel_backend.seams.kernels.backends import BACKENDS, CUDNN, NATIVE, Backend, choose_backend
from parallel_backend.seams.kernels.sage import HOPPER_OPERATOR
from tests.support.cases.families import FAMILIES, UNEVEN
from tests.support.cases.library_cases import SDXL_UNET, unet, unet_inputs
from tests.support.fakes.sage import fake_package
from tests.support.family_model import FamilyModel
from tests.support.host_time import Operations

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16 = torch.bfloat16
SAGE_ERROR = 0.04  # relative: 8 bits for queries and keys, and for values too


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Pretends a GPU of compute capability 9.0; the test puts in the names of the backends that can be called."""
    usable: set[str] = set()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(Backend, "is_there", lambda backend: backend.name in usable)
    return usable


def load(family: str, folder: Path, mesh: Mesh) -> FamilyModel:
    made = FAMILIES[family]
    return FamilyModel.load(made.source(made.save(folder)), mesh).of(made)


def test_every_backend_of_a_plan_exists() -> None:
    assert {"auto", *(backend.name for backend in BACKENDS)} == set(ATTENTION)
    with pytest.raises(PlanError, match=r"no attention='fast' in a plan\.\n\nUse auto, native"):
        ParallelPlan(attention="fast")


@pytest.mark.parametrize("card", [(7, 5), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)], ids=str)
def test_auto_takes_a_flash_package_or_else_torchs_own_choice(
    card: tuple[int, int], gpu: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only torch itself may choose cuDNN, which it has turned off on most cards."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card)
    gpu.update({"cudnn", "sage", "sage_fp8", "sage_fp16"})
    assert choose_backend("auto", CUDA, BF16, 64, ring=1) is NATIVE
    for name, takes in (("flash", card >= (8, 0)), ("flash3", card == (9, 0))):
        before = choose_backend("auto", CUDA, BF16, 64, ring=1).name
        gpu.add(name)
        assert choose_backend("auto", CUDA, BF16, 64, ring=1).name == (name if takes else before)
    assert choose_backend("auto", CPU, BF16, 64, ring=1) is NATIVE
    assert choose_backend("auto", CUDA, torch.float32, 64, ring=1) is NATIVE
    if card >= (8, 0):
        assert choose_backend("cudnn", CUDA, BF16, 64, ring=1) is CUDNN


def test_cudnn_gets_tensors_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of queries, keys and values would cost a card as much as a part of attention."""
    given, kernels = [], []

    def attend(*tensors: torch.Tensor, scale: float) -> torch.Tensor:
        given.extend(tensors)
        return plain_attention(*tensors, scale=scale)

    monkeypatch.setattr(backends, "sdpa_kernel", lambda kernel: kernels.append(kernel) or nullcontext())
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    tensors = torch.randn(3, 2, 7, 4, 8).transpose(2, 3).unbind()  # as blocks have them: (B, L, H, D) in memory
    out = CUDNN.attend(*tensors, 0.3)
    assert torch.equal(out, plain_attention(*tensors, scale=0.3))
    assert kernels == [SDPBackend.CUDNN_ATTENTION]
    assert all(one is other for one, other in zip(given, tensors, strict=True))


def test_auto_takes_what_can_do_the_plan_and_the_model(gpu: set[str]) -> None:
    gpu.update({"cudnn", "flash"})
    assert choose_backend("auto", CUDA, BF16, 256, ring=1).name == "flash"
    assert choose_backend("auto", CUDA, BF16, 20, ring=1).name == "native"
    gpu.remove("flash")
    assert choose_backend("auto", CUDA, BF16, 64, ring=2).name == "native"


def test_a_backend_that_cannot_is_refused_with_the_reason_and_another(
    gpu: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.update({"cudnn", "sage"})
    with pytest.raises(
        PlanError, match=r"attention=flash needs the package flash-attn.*\n\nUse attention=native or cudnn"
    ):
        choose_backend("flash", CUDA, BF16, 64, ring=1)
    with pytest.raises(PlanError, match=r"attention=cudnn returns no log-sum-exp, which ring=2 needs\.\n\nUse .*"):
        choose_backend("cudnn", CUDA, BF16, 64, ring=2)
    with pytest.raises(
        PlanError, match=r"attention=cudnn computes in bf16 or fp16.*fp32\.\n\nUse attention=native, or"
    ):
        choose_backend("cudnn", CUDA, torch.float32, 64, ring=1)
    with pytest.raises(PlanError, match="attention=sage takes head dims .* up to 128, and the model's is 256"):
        choose_backend("sage", CUDA, BF16, 256, ring=1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    with pytest.raises(PlanError, match=r"attention=flash3 needs a device of compute capability 9\.0"):
        choose_backend("flash3", CUDA, BF16, 64, ring=1)


SAGE = {name: next(backend for backend in BACKENDS if backend.name == name) for name in ATTENTION if "sage" in name}
# By card, what each form calls; forms that are missing are refused.
SAGE_FUNCTIONS = {
    (8, 0): {"sage": "sageattn", "sage_fp16": "sageattn_qk_int8_pv_fp16_cuda"},
    (8, 6): {"sage": "sageattn", "sage_fp16": "sageattn_qk_int8_pv_fp16_cuda"},
    (8, 9): {
        "sage": "sageattn",
        "sage_fp8": "sageattn_qk_int8_pv_fp8_cuda",
        "sage_fp16": "sageattn_qk_int8_pv_fp16_cuda",
    },
    (9, 0): {
        "sage": "sageattn",
        "sage_fp8": "sageattn_qk_int8_pv_fp8_cuda_sm90",
        "sage_fp16": "sageattn_qk_int8_pv_fp16_cuda",
    },
    (10, 0): {},
    (12, 0): {"sage": "sageattn", "sage_fp8": "sageattn"},
}


@pytest.fixture
def sage_calls(gpu: set[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of a pretended package sageattention, as they are called."""
    gpu.update(SAGE)
    calls: list[str] = []
    for name, function in fake_package(calls.append).items():
        monkeypatch.setattr(attention_dispatch, name, function)
    pretend_release("2.2.0", monkeypatch)
    return calls


def pretend_release(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has diffusers find this release of sageattention."""
    monkeypatch.setattr(import_utils, "is_sageattention_version", lambda _, least: Version(release) >= Version(least))


@pytest.mark.parametrize("card", SAGE_FUNCTIONS, ids=str)
def test_each_form_of_sage_calls_the_function_for_the_card(
    card: tuple[int, int], sage_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card)
    tensors = torch.randn(3, 1, 2, 4, 8)
    for name in SAGE:
        if name in SAGE_FUNCTIONS[card]:
            choose_backend(name, CUDA, BF16, 64, ring=2).attend_with_lse(*tensors, None)
            assert sage_calls.pop() == SAGE_FUNCTIONS[card][name]
        else:
            with pytest.raises(PlanError, match=f"attention={name} runs on devices .*, and this one has {card[0]}"):
                choose_backend(name, CUDA, BF16, 64, ring=1)


def test_the_page_of_gpus_lists_the_cards_of_each_form() -> None:
    page = (REPOSITORY / "docs" / "gpus.md").read_text("utf-8")
    for name, backend in SAGE.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.split("|")[-2].strip() == ", ".join(map(backends.format_capability, backend.cards))


@pytest.mark.parametrize("name", SAGE)
def test_sages_results_merge_as_a_ring_merges_them(name: str, sage_calls: list[str]) -> None:
    """The keys of each block have another mean, which the kernel subtracts. A log-sum-exp without it would give blocks
    wrong weights."""
    query, key, value = torch.randn(3, 2, 4, 96, 16, generator=torch.Generator().manual_seed(0))
    key = key + torch.arange(3).repeat_interleave(32).view(-1, 1) * 0.4
    backend = choose_backend(name, CUDA, BF16, 16, ring=3)
    exact, exact_lse = NATIVE.attend_with_lse(query, key, value, 0.3)
    out = lse = None
    for block in range(0, 96, 32):
        places = slice(block, block + 32)
        found, found_lse = backend.attend_with_lse(query, key[:, :, places], value[:, :, places], 0.3)
        wanted, wanted_lse = NATIVE.attend_with_lse(query, key[:, :, places], value[:, :, places], 0.3)
        assert 1e-4 < (found - wanted).norm() / wanted.norm() < SAGE_ERROR
        torch.testing.assert_close(found_lse, wanted_lse, atol=SAGE_ERROR, rtol=0)
        out, lse = merge(out, lse, found, found_lse)
    assert out is not None
    assert 1e-4 < (out - exact).norm() / exact.norm() < SAGE_ERROR
    torch.testing.assert_close(lse, exact_lse, atol=SAGE_ERROR, rtol=0)
    assert len(sage_calls) == 3


def test_sage_is_refused_where_the_installed_release_is_wrong(
    sage_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_release("2.1.1", monkeypatch)
    assert choose_backend("sage", CUDA, BF16, 64, ring=1).name == "sage"
    with pytest.raises(PlanError, match=r"wrong log-sum-exp before sageattention 2\.2\.0, and ring=2 needs it"):
        choose_backend("sage", CUDA, BF16, 64, ring=2)
    pretend_release("2.2.0", monkeypatch)
    module = types.ModuleType("sageattention.sm90_compile")
    for name in ("sageattention", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)

    setattr(module, HOPPER_OPERATOR, attention_op)  # any operator of torch.library
    assert choose_backend("sage", CUDA, BF16, 64, ring=2).name == "sage"
    setattr(module, HOPPER_OPERATOR, lambda *_: None)  # as in release 2.2.0
    with pytest.raises(PlanError, match="attention=sage computes nothing in this build of sageattention"):
        choose_backend("sage", CUDA, BF16, 64, ring=1)


@pytest.mark.parametrize("name", [name for name in ATTENTION if name not in ("auto", "native")])
def test_a_cpu_group_refuses_a_gpu_backend_by_name(name: str, one_rank: None, tmp_path: Path) -> None:
    with pytest.raises(
        PlanError, match=rf"attention={name} runs on NVIDIA's GPUs.*cpu\.\n\nUse attention=native, or auto"
    ):
        load("dit", tmp_path, build_mesh(ParallelPlan(attention=name), CPU))


@dataclass(frozen=True)
class CountingBackend(Backend):
    """A kernel of diffusers' that runs on a CPU."""

    name: str = "math"
    kernel: str = "_native_math"
    calls: list[torch.Size] = field(default_factory=list)

    def attend(self, q_BhRD, k_BhKD, v_BhKD, scale, mask=None):
        self.calls.append(q_BhRD.shape)
        return super().attend(q_BhRD, k_BhKD, v_BhKD, scale, mask)


@pytest.mark.parametrize("family", ["dit", "sd3.5", "flux-dev", "wan-t2v"])
def test_the_backend_computes_self_attention_where_nothing_is_sharded(
    family: str, one_rank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = CountingBackend()
    monkeypatch.setattr(apply_plan, "choose_backend", lambda *_: backend)
    model = load(family, tmp_path, build_mesh(ParallelPlan(), CPU))
    inputs = FAMILIES[family].inputs(*FAMILIES[family].shapes[UNEVEN])
    with torch.inference_mode():
        expected = FAMILIES[family].reference(FAMILIES[family].build(), *inputs)
    assert (model(*inputs) - expected).norm() / expected.norm() <= 1e-5
    shared = model.known.blocks[0].attention
    modules = [name for name, _ in model.model.named_modules() if name.split(".")[-1] in shared]
    assert len(backend.calls) == len(modules)


OTHER = Backend("other", "native")  # replaces attention as any kernel does, and computes as torch's own
MODELS = ("flux-dev", "sd3.5", "wan-t2v", "lumina2", "SDXL")  # streams apart and joined, a video, shared keys, a UNet


@pytest.mark.parametrize("family", MODELS)
def test_a_plan_of_one_rank_adds_no_operation(family: str, one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if family == "SDXL":
        model = unet(**SDXL_UNET)
        run = partial(model, **unet_inputs(1), return_dict=False)
    else:
        model = FAMILIES[family].build()
        run = partial(FAMILIES[family].reference, model, *FAMILIES[family].inputs(*FAMILIES[family].shapes[UNEVEN]))

    def count() -> tuple[torch.Tensor, Counter[str]]:
        run()  # the first call of a pipeline compares what the ranks are given, and learns how modules attend
        with Operations() as operations:
            found = run()
        return found[0], operations.by_name

    pipeline = SimpleNamespace(transformer=model)
    with torch.inference_mode():
        expected, own = count()
        for backend in (NATIVE, OTHER):
            monkeypatch.setattr(apply_plan, "choose_backend", lambda *_, backend=backend: backend)
            parallelize(pipeline, ParallelPlan())
            assert any("parallel_attention" in vars(each) for each in model.modules()) == (backend is OTHER)
            found, ours = count()
            unparallelize(pipeline)
            assert torch.equal(found, expected)
            assert ours - own == own - ours == Counter()


@pytest.mark.parametrize("name", ["flash", "flash3"])
def test_log_sum_exps_come_out_alike_whatever_their_layout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels need a GPU; here is what they return, by their documentation: BhR, and diffusers turns 3's round."""

    def kernel(query, key, value, scale, backend, attention_kwargs):
        assert backend == {"flash": "flash", "flash3": "_flash_3"}[name] and attention_kwargs == {"return_lse": True}
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        lse = (query @ key.mT * scale).logsumexp(-1)
        out = F.scaled_dot_product_attention(query, key, value, scale=scale).transpose(1, 2)
        return out, lse if name == "flash" else lse.transpose(1, 2)

    monkeypatch.setattr(attention_dispatch, "dispatch_attention_fn", kernel)
    query, key, value = torch.randn(3, 2, 4, 7, 8)
    backend = next(backend for backend in BACKENDS if backend.name == name)
    for got, wanted in zip(
        backend.attend_with_lse(query, key, value, 0.3), NATIVE.attend_with_lse(query, key, value, 0.3), strict=True
    ):
        torch.testing.assert_close(got, wanted)
