"""What other files of the pack import."""

import torch

from . import TIMES

STRENGTH = 1.0
CALLS = {"count": 0}


def scale(output):
    if isinstance(output, torch.Tensor):
        return TIMES * STRENGTH * output
    return tuple(TIMES * STRENGTH * each if isinstance(each, torch.Tensor) else each for each in output)


def first(output):
    return output if isinstance(output, torch.Tensor) else output[0]
