"""No more jobs run at once than the machine has cores and memory for."""

import os
from pathlib import Path

import pytest

from tools.check import cores


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


@pytest.mark.parametrize(
    ("gib", "quota", "usable"),
    [
        (64, "max 100000\n", 16),
        (13, "max 100000\n", 4),
        (2, "max 100000\n", 1),
        (64, "250000 100000\n", 2),
        (64, "50000 100000\n", 1),
    ],
)
def test_cores_memory_and_the_containers_share_bound_it(
    tmp_path: Path, gib: int, quota: str, usable: int
) -> None:
    memory, share = tmp_path / "meminfo", tmp_path / "cpu.max"
    memory.write_text(f"MemTotal: 99 kB\nMemAvailable:   {gib * 2**20} kB\n")
    share.write_text(quota)
    assert cores.usable(memory, share) == usable


def test_where_the_kernel_tells_nothing_all_cores_are_usable(tmp_path: Path) -> None:
    assert cores.usable(tmp_path / "none", tmp_path / "none") == 16


def test_this_machine_has_one() -> None:
    assert cores.usable() >= 1
