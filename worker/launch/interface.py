"""Chooses the network interface that the ranks use."""

from __future__ import annotations

import os

import psutil


def find_interface(address: str) -> str | None:
    """Returns the name of the interface with this IPv4 address; None if there is none."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, own in interfaces if address in (each.address for each in own)), None)


def use_interface_of(address: str) -> None:
    """Makes the ranks that this process starts use the interface with this address. An operator's own choice wins.

    By default gloo resolves the machine's name: on Debian that is 127.0.1.1, which no other machine reaches.
    """
    if interface := find_interface(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # "=": exactly this name, not a prefix
