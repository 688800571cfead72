"""AuraFlow (https://huggingface.co/fal/AuraFlow-v0.3)."""

from dataclasses import replace

from .adapter import JOINED, JOINT, PROJ_OUT, register_adapter, usual_spec

WHOLE = ("temb", "attention_kwargs")
DOUBLE, SINGLE = replace(JOINT, path="joint_transformer_blocks", whole=WHOLE), replace(JOINED, whole=WHOLE)
register_adapter(usual_spec("AuraFlowTransformer2DModel", DOUBLE, SINGLE, head=replace(PROJ_OUT, chained=False)))
