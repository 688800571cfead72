"""What the driver tells of a card while it works: how busy it is, and how warm."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path

import torch

from parallel_backend.device import is_accelerator, module_of, pci_address

PCI = Path("/sys/bus/pci/devices")


def find_sensors(device: torch.device) -> Callable[[], dict[str, int]]:
    """Returns a function that reads how busy an accelerator is, in percent, and its temperature in °C. Any thread may
    call it, because it asks neither torch nor CUDA.

    busy, celsius: left out where nobody tells: NVIDIA's optional library nvidia-ml-py, or Linux's files of the card.
    """
    if not is_accelerator(device):
        return dict
    files = PCI / pci_address(device)
    asks: dict[str, Callable[[], int]] = {
        "busy": lambda: int((files / "gpu_busy_percent").read_text()),
        "celsius": lambda: int(next(files.glob("hwmon/*/temp1_input")).read_text()) // 1000,
    }
    with contextlib.suppress(Exception):  # the libraries' errors have no class in common
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{module_of(device).get_device_properties(device).uuid}")
        asks = {
            "busy": lambda: nvml.nvmlDeviceGetUtilizationRates(card).gpu,
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(card, 0),
        }

    def read() -> dict[str, int]:
        found = {}
        for name, ask in asks.items():
            with contextlib.suppress(Exception):
                found[name] = ask()
        return found

    return read
