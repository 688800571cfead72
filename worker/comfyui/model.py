"""Builds ComfyUI's model from its file, by ComfyUI's own detection and classes.

The steps are those of `comfy.sd.load_diffusion_model_state_dict`, which always loads the whole model. Here, ComfyUI's
process builds it without weights, and the ranks map theirs from the file's pages, which they share.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from ..errors import ModelFileError
from ..wire.file_marks import check_mark
from ..wire.tensors import DTYPES
from .dit.folder import explain_no_weights, read_folder
from .source import HostSource, VaeSource, weight_files

if TYPE_CHECKING:
    import comfy.model_base
    import comfy.supported_models_base

Weights = dict[str, torch.Tensor]
PACK = Path(__file__).resolve().parents[2]
META = torch.device("meta")
# Models that ComfyUI mistakes for a supported one: a prefix that only their weights' names have.
OTHERS = {"controlnet_": "a ControlNet"}
MOST_TENSORS = 1 << 16  # of a file; the largest models have some thousands
SMALL = 16 << 10  # bytes of a layer, with `keeps_small`


def import_comfyui(source: HostSource | VaeSource) -> None:
    """Makes ComfyUI's modules importable in a rank, as if ComfyUI had been started with these arguments. What they and
    their libraries tell of themselves as they are imported is left out of the rank's log; warnings are not."""
    if "comfy.cli_args" in sys.modules:
        return
    sys.path.append(source.comfyui)
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    with contextlib.ExitStack() as stack:
        stack.callback(logging.disable, before)
        stack.enter_context(patch.object(sys, "argv", [sys.argv[0], *source.arguments]))
        import comfy.options

        comfy.options.enable_args_parsing()
        import comfy.cli_args
        import comfy.model_management  # first, because other modules import it in a circle
        import comfy.model_patcher  # noqa: F401 (and with it every model, but not comfy.sd's VAEs and their media packages)
    gc.freeze()  # no later collection scans these modules, which takes a fifth of a second


def is_gguf(file: str | Path) -> bool:
    return Path(file).suffix.lower() == ".gguf"


def read(file: str | Path) -> tuple[Weights, dict[str, str] | None]:
    """Returns the tensors of a file, or of a folder's files, and a file's metadata. Raises ModelFileError for a file
    that cannot be read, and for a folder without safetensors."""
    if not is_gguf(file):
        weights, metadata = {}, None
        if not (files := weight_files(file)):
            raise explain_no_weights(Path(file))
        for path in files:
            tensors, metadata = read_safetensors(path)
            weights |= tensors
        return weights, metadata
    try:
        from .gguf_file import read_gguf
    except ModuleNotFoundError as error:
        raise ModelFileError(
            f"{Path(file).name} is a GGUF file, but the package {error.name}, which reads them, is not installed.",
            f"Run `{sys.executable} -m pip install -r requirements.txt` in the folder {PACK} and restart ComfyUI.",
        ) from error
    return read_gguf(file)


def read_safetensors(path: Path) -> tuple[Weights, dict[str, str] | None]:
    """Returns a file's tensors, as views of its pages, and its metadata. ComfyUI's option --disable-mmap does not
    count, since most of the tensors are not read. Raises ModelFileError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            if len(names := file.keys()) > MOST_TENSORS:
                raise ModelFileError(
                    f"{path.name} names {len(names)} tensors, which is more than any model has.", "Choose another file."
                )
            return view_tensors(path, file), file.metadata()
    except (SafetensorError, OSError) as error:
        raise ModelFileError(
            f"{path.name} is not a whole safetensors file ({error}); it was cut short or damaged.", "Download it again."
        ) from error


def view_tensors(path: Path, file: Any) -> Weights:
    """Returns the tensors of a safetensors file as views of its pages. Reads only the header: `get_tensor` touches a
    page of each tensor, which takes seconds for a large file on a disk. file: the same, as safetensors has checked it.
    """
    with path.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    pages, begin = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=path.stat().st_size), 8 + size
    found = {}
    for name in file.keys():  # noqa: SIM118 (it has no other way to name its tensors)
        start, stop = header[name]["data_offsets"]
        if dtype := DTYPES.get(header[name]["dtype"]):
            found[name] = torch.empty(0, dtype=dtype)
            found[name].set_(pages[begin + start : begin + stop], 0, header[name]["shape"])
        else:
            found[name] = file.get_tensor(name)
    return found


def write_detected(config: comfy.supported_models_base.BASE) -> str:
    """Returns what ComfyUI has detected of a model, in Python's literals, for `read_detected`. Raises LookupError for a
    model that ComfyUI's own detection does not know."""
    import comfy.supported_models

    kind = type(config)
    if getattr(comfy.supported_models, kind.__name__, None) is not kind:
        raise LookupError(kind.__name__)
    return repr((kind.__name__, {name: each for name, each in config.unet_config.items() if is_literal(each)}))


def is_literal(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(is_literal, value))
    return value is None or isinstance(value, (str, int, float))


def read_detected(detected: str, weights: Weights) -> comfy.supported_models_base.BASE:
    """Returns ComfyUI's config of a model that it has detected before. weights: by ComfyUI's names."""
    import comfy.supported_models
    import comfy.utils

    name, values = ast.literal_eval(detected)
    config = getattr(comfy.supported_models, name)(values)
    if quantised := comfy.utils.detect_layer_quantization(weights, ""):
        config.quant_config = quantised
    return config


def detect(
    file: str | Path, detected: str = ""
) -> tuple[comfy.supported_models_base.BASE | None, Weights, Weights, set[int]]:
    """Detects the diffusion model in a file, or reads the folder of a class-conditional DiT.

    Returns ComfyUI's config of it (None if ComfyUI does not know it), its weights by ComfyUI's names, the other weights
    of a checkpoint, and the addresses of what is in the file's pages: ComfyUI joins some weights in RAM. detected: see
    HostSource. Raises ModelFileError for a broken file, a folder whose configs are broken, and a model that ComfyUI
    mistakes for a supported one.
    """
    import comfy.model_detection
    import comfy.utils

    weights, metadata = read(file)
    pages = {weight.data_ptr() for weight in weights.values()}
    if Path(file).is_dir():
        from .dit.model import DiTConfig

        return DiTConfig(*read_folder(Path(file), len(weights))), weights, {}, pages
    weights, metadata = comfy.utils.convert_old_quants(weights, "", metadata=metadata)
    prefix = comfy.model_detection.unet_prefix_from_state_dict(weights)
    others: Weights = {}
    own = comfy.utils.state_dict_prefix_replace(dict(weights), {prefix: ""}, filter_keys=True)
    if own:
        others = {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)}
        weights, metadata = comfy.utils.convert_old_quants(own, "", metadata=metadata)
    for start, kind in OTHERS.items():
        if any(name.startswith(start) for name in weights):
            raise ModelFileError(f"{Path(file).name} is {kind}.", "Load it with the node for these.")
    if detected:
        return read_detected(detected, weights), weights, others, pages
    if config := comfy.model_detection.model_config_from_unet(weights, "", metadata=metadata):
        return config, weights, others, pages
    if (converted := comfy.model_detection.convert_diffusers_mmdit(weights, "")) is not None:
        return comfy.model_detection.model_config_from_unet(converted, ""), converted, others, pages
    config = comfy.model_detection.model_config_from_diffusers_unet(weights)
    if config is None:
        return None, weights, others, pages
    names = comfy.utils.unet_to_diffusers(config.unet_config)
    return config, {own: weights[name] for name, own in names.items() if name in weights}, others, pages


def choose_dtypes(
    config: comfy.supported_models_base.BASE, weights: Weights, wanted: torch.dtype | None
) -> tuple[torch.dtype | None, torch.dtype | None]:
    """Chooses the dtypes as the stock loader does for ComfyUI's device.

    Returns the dtype of the weights (None for quantised ones), and the dtype to compute in (None for the same). wanted:
    overrides the first.
    """
    import comfy.model_management
    import comfy.utils

    from .gguf_layout import is_packed

    quantised = config.quant_config is not None
    stored = None if quantised or any(map(is_packed, weights.values())) else comfy.utils.weight_dtype(weights)
    supported = list(config.supported_inference_dtypes)
    dtype = wanted or comfy.model_management.unet_dtype(
        model_params=comfy.utils.calculate_parameters(weights),
        supported_dtypes=supported,
        weight_dtype=stored,
    )
    device = comfy.model_management.get_torch_device()
    cast = comfy.model_management.unet_manual_cast(
        None if quantised else dtype, device, config.supported_inference_dtypes
    )
    return dtype, cast


def build(
    config: comfy.supported_models_base.BASE,
    weights: Weights,
    others: Weights,
    dtype: torch.dtype | None,
    cast: torch.dtype | None,
    device: torch.device | None,
    fast_fp8: bool = False,
) -> comfy.model_base.BaseModel:
    """Builds the model with its parameters on a device. Does not fill them.

    others: a checkpoint's other weights; some compute conditions, or say what the model predicts. fast_fp8: as in
    HostSource.

    A class whose constructor computes with tensors (ACE-Step 1.5) fails on the meta device. It is built on the CPU and
    then moved; its memory is never written, so the system never provides it.
    """
    config.set_inference_dtype(dtype, cast)
    if fast_fp8:
        config.optimizations["fp8"] = True
    try:
        return config.get_model({**others, **weights}, "", device=device).eval()
    except (RuntimeError, NotImplementedError) as error:
        if device != META or META.type not in str(error):
            raise
        model = config.get_model({**others, **weights}, "", device=None).eval()
        model.diffusion_model.to(META)
        return model


def map_model(
    source: HostSource, check: Callable[[], None] = lambda: None
) -> tuple[comfy.model_base.BaseModel, set[str], dict[str, torch.dtype]]:
    """Returns ComfyUI's model with its parameters as the file has them, the names of those that are in the file's pages
    (with `diffusion_model.` before them), and the dtypes of those that the model has in another dtype.

    check: called between the steps; raises to give up. Raises ModelFileError.
    """
    if source.mark and source.files:  # a folder without files has an error of its own
        check_mark(source.file, source.files, source.mark)
    config, weights, others, pages = detect(source.path, source.detected)
    if config is None:
        raise ModelFileError(f"ComfyUI does not recognise the model in {source.file}.", "Download it again.")
    check()
    model = build(config, weights, others, dtype_of(source.dtype), dtype_of(source.cast), None, source.fast_fp8)
    dtypes = load_weights(model, weights, source.keeps_small, Path(source.file).name)
    check()
    return model, {name for name, parameter in model.named_parameters() if parameter.data_ptr() in pages}, dtypes


def dtype_name(dtype: torch.dtype | None) -> str:
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype | None:
    return getattr(torch, name) if name else None


def load_weights(
    model: comfy.model_base.BaseModel, weights: Weights, keeps_small: bool, file: str
) -> dict[str, torch.dtype]:
    """Puts a file's weights into the model. file: its name. Raises ModelFileError if one is missing. ComfyUI's classes
    accept older names, so names alone cannot tell that.

    Returns the dtypes of parameters whose weight has another dtype; `cast_weights` converts these. keeps_small: leaves
    out layers of up to SMALL bytes that cast their weights in each forward. A ComfyUI with DynamicVRAM does not round
    these to the model's dtype, such as fp8.
    """
    from comfy.model_management import module_size

    from .gguf_layout import fit_packed, is_packed

    module = model.diffusion_model
    before = dict(module.named_parameters())
    model.load_model_weights(weights, "", assign=True)
    missing, unpacked, dtypes = [], [], {}
    for name, parameter in list(module.named_parameters()):
        empty = before.get(name)
        if parameter is empty:
            missing.append(name)
            continue
        path, _, own = name.rpartition(".")
        owner = module.get_submodule(path)
        if is_packed(parameter):
            wanted = parameter.dtype if empty is None else empty.dtype  # ComfyUI may build layers without weights
            cast = fit_packed(parameter, wanted, own == "weight" and hasattr(owner, "weight_function"))
            unpacked += [] if is_packed(cast) else [name]
            setattr(owner, own, torch.nn.Parameter(cast, requires_grad=False))
        elif empty is not None and type(parameter.data) is torch.Tensor and parameter.dtype != empty.dtype:
            casts = getattr(owner, "comfy_cast_weights", False)
            if not (keeps_small and casts and module_size(owner) <= SMALL):
                dtypes[name] = empty.dtype
    if unpacked:
        logging.info("%d weights are dequantised when they are loaded. The first is %s", len(unpacked), unpacked[0])
    if missing:
        raise ModelFileError(
            f"{file} lacks {len(missing)} weights of ComfyUI's {type(module).__name__}. The first is {missing[0]}. The "
            "file is incomplete or of another model.",
            "Download it again.",
        )
    return dtypes


def cast_weights(
    module: torch.nn.Module,
    dtypes: Mapping[str, torch.dtype],
    device: torch.device | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Converts these parameters to these dtypes, in new memory: on their device, or on the one given. check: called
    before each; raises to give up."""
    import comfy.utils

    for name, dtype in dtypes.items():
        check()
        comfy.utils.set_attr_param(module, name, module.get_parameter(name).to(device, dtype))
