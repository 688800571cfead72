"""The RAM that is free: of the machine, and below the limits of control groups, as containers have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_backend.weights import free_ram

GB = 10**9
STAT = "anon 1\ninactive_file {}\ntotal_inactive_file {}\n"


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 16 GB free, without control groups."""
    for name in ("MEMINFO", "CGROUP", "CGROUPS"):
        monkeypatch.setattr(free_ram, name, tmp_path / name)
    (tmp_path / "MEMINFO").write_text("MemTotal: 32000000 kB\nMemAvailable: 15625000 kB\n")
    return tmp_path


def limit(folder: Path, names: tuple[str, str, str], most: object, used: int, droppable: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{most}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(STAT.format(droppable, droppable))


def test_without_control_groups_it_is_what_the_machine_says(system: Path) -> None:
    assert free_ram.available_ram_bytes() == 16 * GB
    (system / "MEMINFO").unlink()
    assert free_ram.available_ram_bytes() > 1 << 60


def test_the_nearest_limit_of_a_control_group_or_one_above_counts(system: Path) -> None:
    (system / "CGROUP").write_text("0::/pods/comfyui\n")
    limit(system / "CGROUPS" / "pods" / "comfyui", free_ram.V2, "max", 3 * GB, 0)
    assert free_ram.available_ram_bytes() == 16 * GB
    limit(system / "CGROUPS" / "pods", free_ram.V2, 8 * GB, 5 * GB, GB)
    assert free_ram.available_ram_bytes() == 4 * GB, "pages of files can be dropped"
    limit(system / "CGROUPS" / "pods" / "comfyui", free_ram.V2, 4 * GB, 5 * GB, 0)
    assert free_ram.available_ram_bytes() == 0


@pytest.mark.parametrize("path", ["/docker/0123", "/"])
def test_a_container_sees_its_own_group_at_the_top(path: str, system: Path) -> None:
    (system / "CGROUP").write_text(f"5:cpu,cpuacct:{path}\n4:memory:{path}\n")
    limit(system / "CGROUPS" / "memory", free_ram.V1, 2 * GB, GB, 0)
    assert free_ram.available_ram_bytes() == GB
