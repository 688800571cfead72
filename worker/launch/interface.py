"""Which network interface the ranks speak over."""

from __future__ import annotations

import os
import socket
import struct
import sys

SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def interface_of(address: str) -> str | None:
    """The name of this machine's interface that has an IPv4 address; None if none has it, or not on Linux."""
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


def keep_to(address: str) -> None:
    """Has the ranks that this process starts speak over the interface with this address; an operator's own choice wins.

    Left to itself, gloo asks what the machine's name resolves to: on Debian 127.0.1.1, which no other machine reaches.
    """
    if interface := interface_of(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # "=": this name, not all that begin so
