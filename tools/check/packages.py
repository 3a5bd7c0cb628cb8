"""What the tests need of the machine; Debian and Ubuntu can provide it."""

import os
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import find_program, run
from tools.measure import fuzzer

_INSTALL = ("apt-get", "-qq", "install", "-y")
_UPDATE = ("apt-get", "-qq", "update")
_GOOGLETEST = "libgtest-dev"


def googletest(folder: Path) -> Path:
    """Return where GoogleTest is installed; without it, unpack its package.

    Args:
        folder: Where to unpack it, which needs no root.

    Raises:
        ToolError: It is missing, and apt cannot get it.
    """
    prefix = folder / "usr"
    if _finds_googletest() or (prefix / "include" / "gtest" / "gtest.h").is_file():
        return prefix
    folder.mkdir(parents=True, exist_ok=True)
    package = _download(folder)
    if not package or run(["dpkg", "-x", package, folder], check=False).status != 0:
        raise ToolError(
            Outcome.MISSING_TOOL,
            "GoogleTest is missing",
            (
                f"Install {_GOOGLETEST} (Debian, Ubuntu), gtest-devel (Fedora) or "
                "googletest (others)",
            ),
        )
    return prefix


def install_fuzzer() -> None:
    """Install clang and its fuzzer where they are missing and we may.

    That is as root, on Debian and Ubuntu; elsewhere nothing is done, and who needs
    them says what is missing.
    """
    if fuzzer.is_available() or os.geteuid() != 0 or not find_program("apt-get"):
        return
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    if run([*_INSTALL, "clang"], env=env, check=False).status != 0:
        run(_UPDATE, env=env, check=False)
        run([*_INSTALL, "clang"], env=env)
    if not fuzzer.is_available():
        version = run(["clang++", "-dumpversion"]).text.split(".")[0]
        run([*_INSTALL, f"libclang-rt-{version}-dev"], env=env)


def _finds_googletest() -> bool:
    probe = b"#include <gtest/gtest.h>\n"
    command = ["g++", "-E", "-x", "c++", "-"]
    return run(command, stdin=probe, check=False).status == 0


def _download(folder: Path) -> Path | None:
    """Download GoogleTest's package with apt, if this machine has it."""
    if not find_program("apt-get") or not find_program("dpkg"):
        return None
    download = ("apt-get", "-qq", "download", _GOOGLETEST)
    if run(download, cwd=folder, check=False).status != 0:
        run(_UPDATE, check=False)
        run(download, cwd=folder, check=False)
    return next(folder.glob(f"{_GOOGLETEST}_*.deb"), None)
