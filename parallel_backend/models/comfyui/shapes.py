"""Models of 3D shapes: Hunyuan3D 2.1, TripoSplat. Hunyuan3D 2.0 is a Flux model."""

from ..spec import SKIPS, BlockList, register_class, single_stream

HUNYUAN_3D = BlockList(
    path="blocks",
    tokens={"hidden_states": "x", "skip_tensor": "x"},
    returns="x",
    attention={"attn1": "x"},
    whole=("conditioning", "text_states"),
)
register_class(
    "comfy.ldm.hunyuan3dv2_1.hunyuandit.HunYuanDiTPlain",
    HUNYUAN_3D,
    coupled="it exchanges the halves of the batch's conditions",
    unstaged=SKIPS,
)

REFINER = single_stream("noise_refiner", "x", "attn", sides={"rotary_emb": (1, "x")}, whole=("mod",))
BLOCKS = single_stream("blocks", "x", "attn", stream="x+rest", sides={"rotary_emb": (1, "x+rest")}, whole=("mod",))
register_class("comfy.ldm.triposplat.model.LatentSeqMMFlowModel", REFINER, BLOCKS)
