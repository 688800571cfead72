"""ComfyUI's names for the weights of a diffusers folder: what is renamed, joined, swapped, and refused by name."""

from __future__ import annotations

from pathlib import Path

import diffusers
import pytest
import torch

from tests.support.cases.families import FAMILIES
from worker.comfyui.diffusers_names import TABLES, convert_names, read_settings
from worker.comfyui.source import weight_files
from worker.errors import ModelFileError

Tensors = dict[str, torch.Tensor]
DIT, WAN, HUNYUAN = (FAMILIES[name] for name in ("dit", "wan-t2v", "hunyuanvideo"))


def weights(family: str) -> Tensors:
    return FAMILIES[family].build().state_dict()


def test_a_renamed_weight_is_the_tensor_that_was_given() -> None:
    given = weights("wan-t2v")
    converted = convert_names(WAN.model_class, WAN.config, given)
    assert len(converted) == len(given)
    assert {tensor.data_ptr() for tensor in converted.values()} == {tensor.data_ptr() for tensor in given.values()}


def test_joined_and_swapped_weights_leave_the_given_ones_as_they_are() -> None:
    given = weights("hunyuanvideo")
    before = {name: tensor.clone() for name, tensor in given.items()}
    converted = convert_names(HUNYUAN.model_class, HUNYUAN.config, given)
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.items())
    layers = [f"transformer_blocks.1.attn.{name}.weight" for name in ("to_q", "to_k", "to_v")]
    assert torch.equal(converted["double_blocks.1.img_attn.qkv.weight"], torch.cat([given[name] for name in layers]))
    scale, shift = given["norm_out.linear.bias"].chunk(2)
    assert torch.equal(converted["final_layer.adaLN_modulation.1.bias"], torch.cat([shift, scale]))


def test_headers_without_weights_are_converted_alike() -> None:
    given = weights("hunyuanvideo")
    config = HUNYUAN.config
    converted = convert_names(HUNYUAN.model_class, config, given)
    empty = convert_names(HUNYUAN.model_class, config, {name: tensor.to("meta") for name, tensor in given.items()})
    assert {name: tensor.shape for name, tensor in empty.items()} == {
        name: tensor.shape for name, tensor in converted.items()
    }
    assert all(tensor.is_meta for tensor in empty.values())


def test_a_class_without_a_table_is_refused_by_name() -> None:
    assert DIT.model_class not in TABLES
    with pytest.raises(ModelFileError, match="DiTTransformer2DModel"):
        convert_names(DIT.model_class, DIT.config, weights("dit"))


def test_a_weight_that_the_table_does_not_know_is_named() -> None:
    given = {**weights("wan-t2v"), "blocks.0.attn3.to_q.weight": torch.zeros(1)}
    with pytest.raises(ModelFileError, match=r"blocks\.0\.attn3\.to_q\.weight"):
        convert_names(WAN.model_class, WAN.config, given)


@pytest.mark.parametrize(
    "missing",
    ["blocks.1.attn2.to_out.0.bias", "patch_embedding.weight", "blocks.2.scale_shift_table"],
)
def test_a_weight_that_is_missing_is_named(missing: str) -> None:
    given = weights("wan-t2v")
    del given[missing]
    if missing == "patch_embedding.weight":
        del given["patch_embedding.bias"]
    with pytest.raises(ModelFileError, match=missing.removesuffix(".weight").replace(".", r"\.")):
        convert_names(WAN.model_class, WAN.config, given)


def test_a_part_of_a_joined_weight_that_is_missing_is_named() -> None:
    given = weights("hunyuanvideo")
    del given["single_transformer_blocks.0.proj_mlp.weight"]
    with pytest.raises(ModelFileError, match=r"single_transformer_blocks\.0\.proj_mlp\.weight"):
        convert_names(HUNYUAN.model_class, HUNYUAN.config, given)


def test_weights_that_diffusers_leaves_unread_are_left_out() -> None:
    """As published folders of Wan 2.1 have them."""
    given = {**weights("wan-t2v"), "blocks.0.attn2.norm_added_q.weight": torch.zeros(60)}
    assert len(convert_names(WAN.model_class, WAN.config, given)) == len(given) - 1


def test_a_setting_that_comfyuis_class_lacks_is_refused_by_name() -> None:
    config = diffusers.WanTransformer3DModel(**WAN.config).config
    assert read_settings(WAN.model_class, config)["num_heads"] == WAN.config["num_attention_heads"]
    with pytest.raises(ModelFileError, match="patch_size"):
        read_settings(WAN.model_class, {**config, "patch_size": (1, 4, 4)})


def test_vace_blocks_that_comfyuis_class_would_place_otherwise_are_refused() -> None:
    config = {"num_layers": 4, "vace_layers": (0, 2)}
    assert read_settings("WanVACETransformer3DModel", config) == {}
    with pytest.raises(ModelFileError, match="vace_layers"):
        read_settings("WanVACETransformer3DModel", {**config, "vace_layers": (0, 1)})


def test_cogvideox_2b_whose_positions_comfyui_computes_otherwise_is_refused() -> None:
    config = FAMILIES["cogvideox-2b"].build().config
    with pytest.raises(ModelFileError, match="use_rotary_positional_embeddings=False"):
        read_settings("CogVideoXTransformer3DModel", config)


def test_the_pipeline_says_where_ltx_has_its_first_frame() -> None:
    config = FAMILIES["ltx"].build().config
    of_pipeline = read_settings("LTXVideoTransformer3DModel", config, "LTXConditionPipeline")
    assert of_pipeline == {**read_settings("LTXVideoTransformer3DModel", config), "causal_temporal_positioning": True}


@pytest.mark.parametrize(
    ("there", "read"),
    [
        (("diffusion_pytorch_model", "diffusion_pytorch_model.fp16"), ("diffusion_pytorch_model",)),
        (("model-1-of-2", "model-2-of-2"), ("model-1-of-2", "model-2-of-2")),
        (
            ("diffusion_pytorch_model-1-of-2", "diffusion_pytorch_model-2-of-2", "diffusion_pytorch_model.fp16"),
            ("diffusion_pytorch_model-1-of-2", "diffusion_pytorch_model-2-of-2"),
        ),
        ((), ()),
    ],
    ids=["a variant beside it", "names of its own", "shards and a variant", "none"],
)
def test_of_a_folder_one_set_of_weights_is_read(there: tuple[str, ...], read: tuple[str, ...], tmp_path: Path) -> None:
    for name in there:
        (tmp_path / f"{name}.safetensors").touch()
    assert weight_files(tmp_path) == [tmp_path / f"{name}.safetensors" for name in read]
