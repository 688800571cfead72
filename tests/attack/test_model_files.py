"""Model files that are made to harm: the answer names the file, comes at once, and takes no memory."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from demo.host import ComfyHost
from tests.support.host import graphs

MAGIC, GGUF_VERSION, ARRAY, UINT8 = b"GGUF", 3, 9, 0
MANY = 1 << 40
MANY_TENSORS = 500_000
DEPTH = 100_000
SECONDS = 10.0  # of the CPU; safetensors itself takes 4 to read the header of 500,000 tensors
MEMORY = 512 << 20
DIT_FOLDER = "tiny-dit"


def gguf_of(fields: int, tensors: int, rest: bytes) -> bytes:
    return MAGIC + struct.pack("<IQQ", GGUF_VERSION, tensors, fields) + rest


def named(key: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key


def field(value: bytes) -> bytes:
    return gguf_of(1, 0, named(b"general.x") + value)


def empty_gguf_tensors() -> bytes:
    each = (named(b"%08d" % number) + struct.pack("<IQIQ", 1, 0, 0, 0) for number in range(MANY_TENSORS))
    return gguf_of(0, MANY_TENSORS, b"".join(each))


def safetensors_of(header: str) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode()


def empty_safetensors() -> bytes:
    tensors = {f"{number:x}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(MANY_TENSORS)}
    return safetensors_of(json.dumps(tensors))


FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "an array of 2^40 elements": ("bomb.gguf", lambda: field(struct.pack("<IIQ", ARRAY, UINT8, MANY) + bytes(64))),
    "arrays in arrays": ("nested.gguf", lambda: field(struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * DEPTH)),
    "as many fields as there are numbers": ("fields.gguf", lambda: gguf_of((1 << 64) - 1, 0, bytes(256))),
    "as many tensors as there are numbers": ("tensors.gguf", lambda: gguf_of(0, (1 << 64) - 1, bytes(256))),
    "a name of 2^63 letters": ("name.gguf", lambda: gguf_of(1, 0, struct.pack("<Q", 1 << 63) + bytes(64))),
    "empty tensors in GGUF": ("empty.gguf", empty_gguf_tensors),
    "empty tensors in safetensors": ("empty.safetensors", empty_safetensors),
    "objects in objects": ("nested.safetensors", lambda: safetensors_of('{"a":' * DEPTH + "1" + "}" * DEPTH)),
    "a header of 2^60 bytes": ("header.safetensors", lambda: struct.pack("<Q", 1 << 60) + b"{}"),
}
CONFIGS: dict[str, dict[str, Any] | str] = {
    "no patches": {"patch_size": 0},
    "text for a number": {"num_layers": "many"},
    "a million layers": {"num_layers": 1_000_000},
    "no heads": {"num_attention_heads": 0},
    "objects in objects": '{"a":' * DEPTH + "1" + "}" * DEPTH,
}


def seconds_of(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


@pytest.fixture
def ask(host: ComfyHost) -> Callable[[str], str]:
    """Asks about a plan for a model. The answer comes soon and without much memory; what it says of the model."""
    process = psutil.Process(host.process.pid)

    def question(name: str) -> str:
        before, began = process.memory_info().rss, seconds_of(process)
        data = json.dumps({"values": {"mode": "auto"}, "files": {"model_name": name}}).encode()
        said = json.loads(graphs.ask(host, "/paralleldit/plan", data, headers={"Content-Type": "application/json"}))
        assert seconds_of(process) - began < SECONDS
        assert process.memory_info().rss - before < MEMORY
        return " ".join(said["unknown"])

    return question


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_names_more_than_it_holds(
    name: str, host: ComfyHost, models: Path, ask: Callable[[str], str]
) -> None:
    file, make = FILES[name]
    path = models / "models" / "diffusion_models" / f"attack-{file}"
    path.write_bytes(make())
    try:
        assert path.name in ask(path.name)
    finally:
        path.unlink()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_makes_no_model(name: str, host: ComfyHost, models: Path, ask: Callable[[str], str]) -> None:
    folder = models / "models" / "diffusers" / "attack"
    shutil.copytree(models / "models" / "diffusers" / DIT_FOLDER, folder)
    try:
        config, change = folder / "transformer" / "config.json", CONFIGS[name]
        text = change if isinstance(change, str) else json.dumps({**json.loads(config.read_text()), **change})
        config.write_text(text)
        said = ask("attack")
        is_listed = name != "objects in objects"  # else Load DiT does not offer the folder
        assert str(folder) in said or "attack as its DiT, but the weights do not fit" in said if is_listed else not said
    finally:
        shutil.rmtree(folder)
