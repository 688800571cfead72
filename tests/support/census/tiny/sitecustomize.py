"""On the PYTHONPATH of ComfyUI and of its ranks: a model's file can say what ComfyUI is to detect in it.

For models that it knows by a width that is not tiny. Python imports this by its name when it starts.
"""

import importlib.abc
import importlib.machinery
import json
import sys

DETECTION = "comfy.model_detection"


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != DETECTION:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module):
            execute(module)
            module.model_config_from_unet = detect_tiny(module.model_config_from_unet)

        spec.loader.exec_module = execute_and_change
        return spec


def detect_tiny(detect):
    def detected(state_dict, prefix, *args, metadata=None, **options):
        tiny = json.loads((metadata or {}).get("tiny", "null"))
        if tiny is None:
            return detect(state_dict, prefix, *args, metadata=metadata, **options)
        import comfy.supported_models
        import torch

        config = {
            name: getattr(torch, value.removeprefix("torch.")) if str(value).startswith("torch.") else value
            for name, value in tiny["config"].items()
        }
        return getattr(comfy.supported_models, tiny["class"])(config)

    return detected


sys.meta_path.insert(0, Finder())
