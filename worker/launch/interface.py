"""Chooses the network interface that the ranks use."""

from __future__ import annotations

import os

import psutil


def use_interface_of(address: str) -> None:
    """Makes the ranks that this process starts use the interface with this IPv4 address. An operator's choice wins.

    By default gloo resolves the machine's name: on Debian that is 127.0.1.1, which no other machine reaches.
    """
    interfaces = psutil.net_if_addrs().items()
    if interface := next((name for name, own in interfaces if address in (each.address for each in own)), None):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # "=": exactly this name, not a prefix
