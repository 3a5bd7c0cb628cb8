"""What upstream's complete build needs beside the environment."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import requests

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import find_program, run

_GXX = (12, 3)  # cmake/cpu_extension.cmake stops below it


@dataclass(frozen=True)
class FetchedSource:
    """A source that upstream's CMake files download.

    Args:
        name: As FetchContent names it.
        file: The CMake file that says where it is.
        variable: Environment or CMake variable that names a local copy instead.
    """

    name: str
    file: str
    variable: str

    def missing(self, tree: Path) -> str | None:
        """Return what is wrong, if it can be had neither here nor elsewhere."""
        named = f"{os.environ.get('CMAKE_ARGS', '')} {' '.join(os.environ)}"
        text = (tree / self.file).read_text("utf-8")
        found = re.search(rf"{self.name}\s+GIT_REPOSITORY\s+(\S+)", text)
        if self.variable in named or not found:
            return None
        try:
            if requests.head(found[1], timeout=10, allow_redirects=True).ok:
                return None
        except requests.RequestException:
            pass
        return (
            f"the source of {self.name}: {found[1]} cannot be reached; "
            f"{self.variable} may name a local copy"
        )


_SOURCES = {
    "cpu": FetchedSource("oneDNN", "cmake/cpu_extension.cmake",
                  "FETCHCONTENT_SOURCE_DIR_ONEDNN"),
    "cuda": FetchedSource("cutlass", "CMakeLists.txt", "VLLM_CUTLASS_SRC_DIR"),
}  # fmt: skip


def require(tree: Path, device: str, torch: str | None) -> None:
    """Stop unless this machine can compile everything for the device.

    Args:
        tree: The patched tree.
        device: "cpu" or "cuda".
        torch: The version of torch in the environment; None: not installed yet.

    Raises:
        ToolError: Something is missing; the details list all of it.
    """
    own = _missing_for_cpu() if device == "cpu" else _missing_for_cuda(torch)
    missing = [text for text in (*own, _SOURCES[device].missing(tree)) if text]
    if missing:
        raise ToolError(
            Outcome.MISSING_TOOL,
            f"this machine cannot compile all of vLLM for {device}",
            (
                "Take the compiled members from upstream's wheel instead: "
                f"python -m tools build --device {device}",
                "or install what is missing",
            ),
            tuple(f"missing: {text}" for text in missing),
        )


def _missing_for_cpu() -> list[str]:
    compiler = os.environ.get("CXX", "g++")
    if not find_program(compiler):
        return [f"{compiler} 12.3 or newer"]
    missing = []
    version = run([compiler, "-dumpfullversion"], check=False).text
    if tuple(int(part) for part in re.findall(r"\d+", version)) < _GXX:
        missing.append(f"g++ 12.3 or newer; {compiler} is {version or 'no g++'}")
    numa = run(
        [compiler, "-E", "-x", "c++", "-"], stdin=b"#include <numa.h>\n", check=False
    )
    if numa.status != 0:
        missing.append("numa.h (Debian: libnuma-dev)")
    return missing


def _missing_for_cuda(torch: str | None) -> list[str]:
    missing = []
    home = os.environ.get("CUDA_HOME")
    nvcc = find_program(str(Path(home, "bin", "nvcc")) if home else "nvcc")
    if not nvcc or run([nvcc, "--version"], check=False).status != 0:
        missing.append("nvcc of CUDA 13.0 (the CUDA toolkit, or CUDA_HOME)")
    if torch and torch.endswith("+cpu"):
        missing.append(
            f"a CUDA build of torch: pip finds {torch} first; remove that from its "
            "find-links or indexes and run make clean"
        )
    return missing
