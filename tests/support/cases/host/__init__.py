"""Tiny models of ComfyUI's own classes, and calls of them: the rows of the equality table, by name."""

from __future__ import annotations

from tests.support.cases.host import audio, flux, image, joint, ltx, lumina, qwen, video, wan
from tests.support.cases.host.base import HostCase

CASES: dict[str, HostCase] = {
    **flux.CASES, **lumina.CASES, **qwen.CASES, **image.CASES, **joint.CASES, **video.CASES, **wan.CASES,
    **ltx.CASES, **audio.CASES,
}  # fmt: skip
