"""Packages beside the serving environment: in a folder of their own, for PYTHONPATH."""

import shutil
from pathlib import Path

from tools.base import atomic
from tools.base.process import run
from tools.base.project import Project
from tools.source import lockfile


def install(project: Project, python: Path, name: str, site: Path) -> bool:
    """Install what a lock file names; return whether that took work.

    A killed run leaves no copy of the lock, so the next one starts afresh.

    Args:
        project: The project. The caller holds its lock.
        python: The interpreter of the environment that serves.
        name: The lock file's name in upstream/, without its suffix.
        site: The folder, which belongs to this lock alone.

    Raises:
        ToolError: The lock does not fit its input, or a package cannot be installed.
    """
    lock = project.root / "upstream" / f"{name}.lock"
    lockfile.check(lock.with_suffix(".in"), lock)
    installed = site.parent / lock.name
    if installed.is_file() and installed.read_bytes() == lock.read_bytes():
        return False
    installed.unlink(missing_ok=True)
    shutil.rmtree(site, ignore_errors=True)
    pip = (python, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes")
    run([*pip, "--target", site, "-r", lock])
    atomic.write(installed, lock.read_bytes())
    return True
