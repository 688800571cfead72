"""The RAM that this process may still take: the machine's, and that of its control groups (cgroups), such as a
container's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

MEMINFO, CGROUP, CGROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# Files of a control group, by the kernel's version of them: its limit, what it uses, and what of that is file pages
# which the kernel can drop. See https://docs.kernel.org/admin-guide/cgroup-v2.html.
V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
V2 = "memory.max", "memory.current", "inactive_file"


def available_ram_bytes() -> int:
    """Returns the RAM that is free or can be freed. It is unlimited where the system does not say."""
    return min((*machine_bytes(), *cgroup_bytes()), default=sys.maxsize)


def machine_bytes() -> Iterator[int]:
    if MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        yield int(lines["MemAvailable"].split()[0]) * 1024


def cgroup_bytes() -> Iterator[int]:
    """Yields what is left below the limit of each control group that this process is in. In a container, the names of
    the groups above may be missing."""
    for line in CGROUP.read_text().splitlines() if CGROUP.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = (CGROUPS / "memory", V1) if controllers else (CGROUPS, V2)
        folder = top / path.strip("/")
        for each in (folder, *folder.parents):
            if each.is_relative_to(top):
                with contextlib.suppress(OSError, ValueError, KeyError):  # it has no limit, or is not there
                    yield left_in(each, *names)


def left_in(group: Path, limit: str, usage: str, droppable: str) -> int:
    """Returns the bytes left in a control group. Raises ValueError if it has no limit."""
    most, used = (int((group / name).read_text()) for name in (limit, usage))
    counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return max(0, most - used + int(counts[droppable]))
