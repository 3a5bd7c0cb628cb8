"""On how many cores jobs may run here."""

import os
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_GIB_EACH = 3  # a server, or a process with vLLM and its tests


def usable(memory: Path = _MEMORY, quota: Path = _QUOTA) -> int:
    """Return the cores that we may use and have memory for, at least 1.

    Args:
        memory: What the kernel says of the memory.
        quota: What the container may use of the processor: microseconds in a period,
            or "max", and the period; see "CPU Interface Files" in the kernel's
            cgroup-v2.rst.
    """
    cores = len(os.sched_getaffinity(0))
    if quota.is_file():
        share, _, period = quota.read_text("utf-8").partition(" ")
        if share != "max":
            cores = min(cores, int(share) // int(period))
    if memory.is_file():
        fields = dict(
            line.split(":", 1) for line in memory.read_text("utf-8").splitlines()
        )
        gib = int(fields["MemAvailable"].split()[0]) // 2**20
        cores = min(cores, gib // _GIB_EACH)
    return max(1, cores)
