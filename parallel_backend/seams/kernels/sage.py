"""SageAttention's kernels by card, and the faults of some of its releases.

They round queries and keys to 8 bits, after they have subtracted the keys' mean (https://arxiv.org/abs/2411.10958). The
log-sum-exp that they return is of the unchanged keys, to base e, of shape BhR in fp32. So ring can merge it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping

PACKAGE = "the package sageattention"
# The package chooses a kernel by the card, and refuses all other cards.
SAGE_KERNELS = dict.fromkeys(((8, 0), (8, 6), (8, 9), (9, 0), (12, 0), (12, 1)), "sage")
# Weights and values in fp8. The cards 12.x quantise in another way, which only the package's own choice knows.
FP8_KERNELS = {
    (8, 9): "_sage_qk_int8_pv_fp8_cuda",
    (9, 0): "_sage_qk_int8_pv_fp8_cuda_sm90",
    (12, 0): "sage",
    (12, 1): "sage",
}
# Weights and values in fp16. It quantises by a Triton kernel that does not run on the cards 12.x.
FP16_KERNELS: Mapping[tuple[int, int], str] = dict.fromkeys(
    ((8, 0), (8, 6), (8, 9), (9, 0)), "_sage_qk_int8_pv_fp16_cuda"
)
LSE_VERSION = "2.2.0"  # before it, the log-sum-exp was wrong on the cards 8.0 and 9.0, and shifted on 8.9
HOPPER = (9, 0)
HOPPER_OPERATOR = "qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf"


def find_fault(capability: tuple[int, int], ring: int) -> str | None:
    """Returns why the installed package would compute wrong results; None if it computes right ones."""
    from diffusers.utils.import_utils import is_sageattention_version

    if ring > 1 and not is_sageattention_version(">=", LSE_VERSION):
        return f"returns a wrong log-sum-exp before sageattention {LSE_VERSION}, and ring={ring} needs it"
    if capability == HOPPER and not has_hopper_kernel():
        return "computes nothing in this build of sageattention, where another function hides the kernel for this card"
    return None


def has_hopper_kernel() -> bool:
    """Whether the package calls its kernel for cards of capability 9.0.

    In release 2.2.0, the function that only tells torch.compile the result's shape has the name of the operator and
    replaces it. The fixed sources have the same version number. Older releases have no such module.
    """
    module = sys.modules.get("sageattention.sm90_compile")  # diffusers has imported the package
    return not inspect.isfunction(getattr(module, HOPPER_OPERATOR, None))
