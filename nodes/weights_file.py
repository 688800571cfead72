"""Weights in a file in memory that all ranks of this machine map.

ComfyUI's modules keep views of the same pages, so there is one copy of the weights.
"""

from __future__ import annotations

import itertools
import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import comfy.utils
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ..parallel_backend.device import trim_heap
from ..parallel_backend.errors import NoRoomError
from ..parallel_backend.weights.free_ram import available_ram_bytes
from ..parallel_backend.weights.tensors import are_equal, list_plain_tensors
from ..worker.comfyui.model import Weights
from ..worker.wire.private_folder import find_room
from .errors import Refused

NO_BLOCKS = ("F32", "F16")  # formats of ComfyUI-GGUF's tensors that are not in blocks
ENDS, BETWEEN = 1024, 512  # numbers of a weight that are compared: at each end, and at equal distances between
_numbers = itertools.count(1)


class FileInMemory:
    """A file with a model's weights. It is removed when no model needs it any more."""

    def __init__(self, weights: Mapping[str, torch.Tensor], name: str) -> None:
        """Raises Refused if the weights have no room."""
        has_blocks = any(form_of(each) for each in weights.values())
        try:
            parent = find_room(sum(each.nbytes for each in weights.values()), available_ram_bytes())
            self.folder = parent / str(next(_numbers))
            self.folder.mkdir()
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
            self.path = self.folder / f"{name}.{'gguf' if has_blocks else 'safetensors'}"
            if has_blocks:
                from ..worker.comfyui.gguf_file import write_gguf

                blocks = {key: (plain(each), form_of(each), each.shape) for key, each in weights.items()}
                write_gguf(self.path, blocks)
            else:
                comfy.utils.save_torch_file(separate(weights), str(self.path))
        except NoRoomError as error:
            raise Refused(*error.explanation) from error
        except (OSError, SafetensorError) as error:
            raise Refused(f"The ranks need its weights in a file, which cannot be written ({error}).") from error
        pages = self.read()
        take_all_pages((weight, pages[key]) for key, weight in weights.items())

    def read(self) -> Weights:
        """Returns the weights in the file's pages, those in blocks as bytes."""
        if self.path.suffix == ".safetensors":
            return load_file(self.path)
        from ..worker.comfyui.gguf_file import read_gguf

        found = read_gguf(self.path)[0]
        return {key: list_plain_tensors(each)[0] for key, each in found.items()}

    def has(self, weights: Weights) -> bool:
        """Whether the file has these weights, as far as `find_written` can tell."""
        if not self.path.exists():  # a cleaner has removed it
            return False
        stored, own = self.read(), {key: plain(each) for key, each in weights.items()}
        return stored.keys() == own.keys() and not any(find_written(own, stored))


# By the module or model whose weights they are. Models that ranks have of the same weights are keys, too, so that the
# file outlives the first.
kept_files: weakref.WeakKeyDictionary[torch.nn.Module, FileInMemory] = weakref.WeakKeyDictionary()


def keep_file(owner: torch.nn.Module, weights: Weights, name: str) -> Path:
    """Returns the file with the weights of a module or model, as long as that lives. Raises Refused if they have no
    room."""
    if owner not in kept_files or not kept_files[owner].has(weights):
        kept_files[owner] = FileInMemory(weights, name)
    return kept_files[owner].path


def separate(weights: Mapping[str, torch.Tensor]) -> Weights:
    """Returns weights each in memory of its own, as a safetensors file has them."""
    addresses: set[int] = set()
    found = {key: plain(each) for key, each in weights.items()}
    for key, each in found.items():
        if each.data_ptr() in addresses:
            found[key] = each.clone()
        addresses.add(each.data_ptr())
    return found


def form_of(weight: torch.Tensor) -> str:
    """Returns GGUF's name of the format of a weight in blocks, as ComfyUI-GGUF has it; empty for others."""
    form = getattr(getattr(weight, "tensor_type", None), "name", "")
    return "" if form in NO_BLOCKS else form


def plain(weight: torch.Tensor) -> torch.Tensor:
    """Returns a weight as torch's own tensor in this process's memory; one in blocks as bytes."""
    return weight.detach().as_subclass(torch.Tensor).cpu().contiguous()


def take_all_pages(weights: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Gives weights in RAM the memory of a file's pages with the same numbers, and their own memory back to the system.
    Others stay as they are."""
    for weight, page in weights:
        for here, there in zip(list_plain_tensors(weight), list_plain_tensors(page), strict=False):
            own = here.detach().as_subclass(torch.Tensor)
            if own.device == there.device and own.dtype in (there.dtype, torch.uint8) and own.nbytes == there.nbytes:
                here.data = there.detach().view(own.dtype).view(own.shape)
    trim_heap()


def find_written(weights: Mapping[str, torch.Tensor], stored: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yields the names of weights that differ from the file's. Only the ends of each are compared, and some numbers
    between: a node that writes nearly always writes over a whole weight, or over rows of it.

    stored: the file's, which may have another dtype."""
    for name, weight in weights.items():
        if (other := stored.get(name)) is not None:
            pairs = zip(list_plain_tensors(weight), list_plain_tensors(other), strict=False)
            if not all(have_equal_samples(*pair) for pair in pairs):
                yield name


def have_equal_samples(weight: torch.Tensor, stored: torch.Tensor) -> bool:
    between = slice(None, None, weight.numel() // BETWEEN | 1)  # odd: a power of two would always hit the same column
    samples = (slice(None, ENDS), slice(-ENDS, None), between)
    return all(are_equal(stored.flatten()[each].to(weight.dtype), weight.flatten()[each].cpu()) for each in samples)
