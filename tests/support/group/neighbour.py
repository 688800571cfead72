"""`python -m tests.support.group.neighbour ADDRESS:PORT`: `worker.join` on the same machine, as if it were on another.

The first machine knows its neighbours by their addresses, and the loopback has many.
"""

from __future__ import annotations

import socket
from typing import Any

from worker import join

ADDRESS = "127.0.0.2"


def main() -> None:
    connect = socket.create_connection

    def connect_from(address: tuple[str, int], *args: Any, **kwargs: Any) -> socket.socket:
        return connect(address, *args, **{"source_address": (ADDRESS, 0), **kwargs})

    socket.create_connection = connect_from
    join.main()


if __name__ == "__main__":
    main()
