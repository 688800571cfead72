"""Chooses the network interface that the ranks use."""

from __future__ import annotations

import os
import socket
import struct
import sys

SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def find_interface(address: str) -> str | None:
    """Returns the name of the interface with this IPv4 address; None if there is none, or not on Linux."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def use_interface_of(address: str) -> None:
    """Makes the ranks that this process starts use the interface with this address. An operator's own choice wins.

    By default gloo resolves the machine's name: on Debian that is 127.0.1.1, which no other machine reaches.
    """
    if interface := find_interface(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # "=": exactly this name, not a prefix
