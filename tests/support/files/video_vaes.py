"""`files.video_vaes COMFYUI FOLDER`:
tiny VAEs of videos with seeded weights, as files that ComfyUI detects: Wan 2.1's, one of LTX that draws noise, and
MiniMax-H3's of videos and of their sound, which ComfyUI detects where it builds tiny ones (`tiny_vaes`)."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from tests.support.cases.vaes.host_vaes import SOUND, VAES
from tests.support.files.stock_files import wan
from tests.support.host.mounted import import_comfyui


def main(comfyui: str, folder: str) -> None:
    import_comfyui(comfyui)
    save_file(wan(), Path(folder) / "wan.safetensors")
    save_file(VAES["minimax-h3"].made().state_dict(), Path(folder) / "minimax.safetensors")
    save_file(SOUND.made().state_dict(), Path(folder) / "minimax-sound.safetensors")
    ltx = VAES["ltx-0.9.1"].made()
    metadata = {"config": json.dumps({"vae": ltx.config})}
    save_file(ltx.state_dict(), Path(folder) / "ltx.safetensors", metadata)
