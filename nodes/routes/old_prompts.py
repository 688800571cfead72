"""Prompts in API format that were saved for an earlier version of the pack, for scripts that queue them."""

from __future__ import annotations

from typing import Any

from server import PromptServer

OLD_VALUES = {"ParallelDiT_LoadDiffusionModel": {"dtype": {"auto": "default"}}}


def renew_old_prompts() -> None:
    """Has ComfyUI's server renew each prompt before it is checked."""
    PromptServer.instance.add_on_prompt_handler(renewed)


def renewed(asked: dict[str, Any]) -> dict[str, Any]:
    """A request to queue a prompt, with today's names for values."""
    prompt = asked.get("prompt")
    for node in prompt.values() if isinstance(prompt, dict) else ():
        if isinstance(node, dict) and isinstance(inputs := node.get("inputs"), dict):
            for name, values in OLD_VALUES.get(str(node.get("class_type")), {}).items():
                if isinstance(value := inputs.get(name), str):
                    inputs[name] = values.get(value, value)
    return asked
