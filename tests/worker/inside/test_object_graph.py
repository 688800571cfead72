"""Functions and objects that ComfyUI's process describes, and a rank makes from the same files. The census has
what they leave on a model."""

from __future__ import annotations

import collections
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from worker.inside.code_files import CodeFiles, find_package_folders
from worker.inside.decoder import Decoder
from worker.inside.encoder import Encoder
from worker.wire.tensors import Tensors, UnsendableError
from worker.wire.tree import pack, unpack

CODE = """
import collections
import threading
from threading import Thread
from typing import NamedTuple

import torch

from .other import double


class Keeper:
    shared = {"uses": 0}

    def __init__(self, tensor):
        self.tensor, self.steps, self.seen, self.me = tensor, 0, [], self
        self.by_pair = {(0, 1): "a"}

    def step(self, value):
        self.steps += 1
        self.seen.append(value)
        self.by_pair[0, 2] = self.steps
        result = double(value) + self.tensor
        self.last = (self.steps, result)
        return result


class Slotted:
    __slots__ = ("steps",)


class State:
    def __init__(self):
        self.steps = 0


class Settings(NamedTuple):
    blocks: frozenset
    counts: dict


@torch.no_grad()
def halve(value):
    return value / 2


@torch.compiler.disable()
def third(value):
    return value / 3


def stepping(state, settings):
    def step(value):
        state.steps += 1
        settings.counts[value] += 1
        return halve(value) + third(value)

    return step


def locked():
    lock = threading.Lock()
    return lambda: lock


class Locked:
    def __init__(self):
        self.lock = threading.Lock()


def local():
    class Inner:
        def step(self):
            return 1

    return Inner()


def combined():
    class Both(State, Locked):
        pass

    return Both()

"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ComfyUI and a node pack."""
    root = tmp_path_factory.mktemp("root")
    (root / "packs" / "pack").mkdir(parents=True)
    (root / "comfy").mkdir()
    (root / "packs" / "pack" / "__init__.py").write_text(
        "def own():\n    return 1\n\n\nLIMIT = 3\nTWICE = 1\nTWICE = 2\nCOMPUTED = own()\n"
        "IF_THERE = 1\ntry:\n    import absent\nexcept ImportError:\n    IF_THERE = 0\n"
    )
    (root / "packs" / "pack" / "inside.py").write_text(CODE)
    (root / "packs" / "pack" / "other.py").write_text(
        "from . import LIMIT\n\n\ndef double(value):\n    return (LIMIT - 1) * value\n"
    )
    (root / "outside.py").write_text("def away():\n    return 1\n")
    for file in root.rglob("*.py"):  # as if it had been there before this process began
        os.utime(file, (time.time() - 1e6,) * 2)
    return root


@pytest.fixture(scope="module")
def code(root: Path) -> ModuleType:
    return load(root / "packs" / "pack", "a_pack.inside")


def load(folder: Path, name: str) -> ModuleType:
    """A pack's module, by the name that ComfyUI gives to it."""
    package, _, own = name.partition(".")
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec and spec.loader
    sys.modules[package] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(name) if own else sys.modules[package]


class Both:
    """ComfyUI's process and a rank."""

    def __init__(self, root: Path) -> None:
        files = CodeFiles(str(root), [str(root / "packs")])
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        stand_in = torch.nn.Sequential(torch.nn.Linear(2, 2, device="meta"))
        self.stand_in = stand_in
        parts = {id(part): path for path, part in stand_in.named_modules()}
        self.encoder = Encoder(files, parts, {}, lambda _network: {})
        self.decoder = Decoder(files, self.model, lambda: torch.device("cpu"))

    def send(self, value: Any) -> Any:
        """The value in the rank, by way of the wire."""
        self.encoder.begin()
        encoded = self.encoder.encode(value)
        tensors: Tensors = {}
        packed = pack({"value": encoded, "changes": self.encoder.changes()}, "x", tensors)
        received = unpack(packed, {name: tensor.clone() for name, tensor in tensors.items()})
        self.decoder.apply(received["changes"])
        return self.decoder.decode(received["value"])

    def answer(self) -> None:
        self.encoder.apply(self.decoder.changes())


@pytest.fixture
def both(root: Path) -> Iterator[Both]:
    yield Both(root)


def test_a_users_own_packages_are_installed_ones(tmp_path: Path) -> None:
    (tmp_path / "own" / "einops-0.8.dist-info").mkdir(parents=True)
    (tmp_path / "pack").mkdir()
    found = find_package_folders(["", str(tmp_path / "own"), str(tmp_path / "pack"), str(tmp_path / "none")])
    assert str(tmp_path / "own") in found and str(tmp_path / "pack") not in found
    assert any(torch.__file__.startswith(folder) for folder in found) and "" not in found


def test_an_object_keeps_what_it_learned_and_takes_over_what_changed(both: Both, code: ModuleType) -> None:
    here = code.Keeper(torch.ones(2))
    there = both.send(here.step)
    own: Any = there.__self__
    assert own is not here and own.me is own and own.by_pair == {(0, 1): "a"}
    assert there(torch.ones(2)).tolist() == [3.0, 3.0]
    both.answer()
    assert (here.steps, here.last[0], here.last[1].tolist()) == (1, 1, [3.0, 3.0])
    assert here.by_pair == {(0, 1): "a"}  # what has a key that is not plain stays in the rank
    assert len(here.seen) == 1
    here.tensor.add_(1)
    here.label = "new"
    again: Any = both.send(here.step)
    assert again.__self__ is own and (own.steps, own.label, len(own.seen)) == (1, "new", 1)
    assert again(torch.ones(2)).tolist() == [4.0, 4.0] and own.by_pair[0, 2] == 2
    del here.label
    both.send(here.step)
    assert not hasattr(own, "label")


def test_named_tuples_and_default_dicts_are_there_and_what_they_count_comes_back(both: Both, code: ModuleType) -> None:
    state = code.State()
    settings = code.Settings(frozenset({1, 2}), collections.defaultdict(int))
    there = both.send((code.stepping(state, settings), state, settings, code.halve, code.third))
    assert there[0](6) == 5
    assert there[0](6) == 5
    assert there[1].steps == 2
    assert (there[2].blocks, dict(there[2].counts)) == ({1, 2}, {6: 2})
    assert there[3](4) == 2 and there[4](6) == 2
    assert not hasattr(there[3], "__wrapped__"), "a rank keeps no gradients anyway"
    both.answer()
    assert (state.steps, settings.counts) == (2, {6: 2})


def test_an_empty_class_made_in_a_function_is_made_of_its_bases(both: Both, code: ModuleType) -> None:
    one, other = code.combined(), code.combined()
    there, second = both.send((one, other))
    assert type(there) is type(second) and type(there).__name__ == "Both"
    assert [base.__name__ for base in type(there).__bases__] == ["State", "Locked"]
    assert type(there).__bases__[0] is type(both.send(code.State()))


def test_what_a_closure_cannot_send_is_no_empty_cell(both: Both, code: ModuleType) -> None:
    with pytest.raises(UnsendableError, match="lock"):
        both.send(code.locked())


def test_a_tensor_that_is_replaced_in_each_step_is_kept_once_on_both_sides(both: Both, code: ModuleType) -> None:
    """As a step cache has it, in a slot, and in a list that grows."""
    here = code.Keeper(torch.ones(2))
    with torch.inference_mode():
        for step in range(1, 5):
            own: Any = both.send(here)
            own.last = torch.full((2,), float(step))
            own.seen.append(torch.full((2,), float(-step)))
            both.answer()
            assert here.last.tolist() == [step, step] and [each[0].item() for each in here.seen] == [
                -one for one in range(1, step + 1)
            ]
            kept = [each for each in both.encoder.entries.values() if isinstance(each.value, torch.Tensor)]
            held = [each for each in both.decoder.entries.values() if isinstance(each.value, torch.Tensor)]
            assert len(kept) == len(held) == 2 + step  # its own, the last one, and those of the list


def test_a_tensor_in_two_slots_is_replaced_in_both(both: Both, code: ModuleType) -> None:
    here = code.Keeper(torch.ones(2))
    there = both.send(here.step).__self__
    for value in (1.0, 2.0, 3.0):
        there.one = there.other = torch.full((2,), value)
        both.answer()
        assert here.one is here.other and here.one.tolist() == [value, value]


def test_a_rank_that_has_forgotten_all_gets_it_again_and_names_new_tensors_otherwise(
    both: Both, code: ModuleType
) -> None:
    here = code.Keeper(torch.ones(2))
    both.send(here.step)(torch.ones(2))
    both.answer()
    both.decoder = Decoder(both.encoder.files, both.model, both.decoder.device)
    both.encoder.forget_sent()
    own: Any = both.send(here.step).__self__
    assert (own.steps, own.last[0], own.last[1].tolist()) == (1, 1, [3.0, 3.0])
    own.other = torch.zeros(2)
    both.answer()
    assert here.last[1].tolist() == [3.0, 3.0] and here.other.tolist() == [0.0, 0.0]
    both.decoder = Decoder(both.encoder.files, both.model, both.decoder.device)
    both.encoder.forget_sent()
    own = both.send(here.step).__self__
    own.later, own.other, own.last = own.other, 0, 0
    both.answer()
    assert here.later.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("age", "words"), [(None, "cannot be read"), (-1, "has changed since ComfyUI started")], ids=["gone", "changed"]
)
def test_code_whose_file_is_another_now_is_not_described(age: int | None, words: str, root: Path) -> None:
    folder = root / "packs" / f"late{age}"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "code.py").write_text("def late():\n    return 1\n")
    os.utime(folder / "code.py", (time.time() - (age or 1e6),) * 2)
    late = load(folder, f"late{age}.code").late
    if age is None:
        (folder / "code.py").unlink()
    with pytest.raises(UnsendableError, match=words):
        Both(root).send(late)


def test_a_tensor_that_two_share_is_one_there(both: Both) -> None:
    shared = torch.zeros(2)
    there = both.send([[shared], {"x": shared}])
    assert there[0][0] is there[1]["x"]


def test_what_cannot_be_described_is_named(both: Both, root: Path, code: ModuleType) -> None:
    outside = importlib.util.spec_from_file_location("outside", root / "outside.py")
    assert outside and outside.loader
    module = importlib.util.module_from_spec(outside)
    outside.loader.exec_module(module)
    meta = torch.nn.Parameter(torch.empty(2, device="meta"))
    cases = {
        "neither of ComfyUI nor": module.away,
        "__init__.py, which the ranks do not run": sys.modules["a_pack"].own,
        "lock": code.Locked(),
        "inside of a function": code.local(),
        "A generator": (each for each in ()),
        "A Slotted": code.Slotted(),
        "threading.py is neither of ComfyUI": threading.current_thread(),
        "without numbers": meta,
        "of this pack": CodeFiles.load,
    }
    for words, value in cases.items():
        both.encoder.begin()
        with pytest.raises(UnsendableError, match=words):
            both.encoder.encode(value)


@pytest.mark.parametrize(
    ("encoded", "words"),
    [
        ({"class": [{"file": "1/../outside.py", "hash": ""}, "away"]}, "no file of ComfyUI's"),
        ({"module": {"file": "1/pack/inside.py", "hash": "0"}}, "another file here"),
        ({"named": "os:system"}, "not of the installed code"),
        ({"partial": [{"named": "builtins:exec"}, ["1"], []]}, "not of the installed code"),
        ({"pickle": "x"}, "not a kind of encoded value"),
    ],
    ids=["path", "hash", "function", "partial", "kind"],
)
def test_a_rank_takes_nothing_else(both: Both, encoded: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        both.decoder.decode(encoded)


@pytest.mark.parametrize("name", ["threading.Thread", "torch.hub", "Keeper.__init__", "Thread", "nothing"])
def test_a_file_gives_only_what_it_defines(both: Both, code: ModuleType, name: str) -> None:
    files = both.encoder.files
    named = files.name(str(code.__file__))
    with pytest.raises(ValueError, match="defines no class"):
        both.decoder.decode({"class": [named, name]})


def test_a_rank_has_the_constants_of_a_packs_package_and_nothing_else_of_it(both: Both, code: ModuleType) -> None:
    package: Any = sys.modules[both.send(code.stepping).__globals__["__package__"]]
    assert package.LIMIT == 3
    for name in ("TWICE", "COMPUTED", "IF_THERE", "own"):
        with pytest.raises(AttributeError, match="which they do not run"):
            getattr(package, name)
