"""ComfyUI's own model classes as data: one spec per class. Imports nothing of ComfyUI; see ../README.md to add one.

Each file registers its classes.
"""

import importlib
import pkgutil

for found in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{found.name}", __name__)
