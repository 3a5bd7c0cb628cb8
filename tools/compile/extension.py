"""The extension vllm.tagma, compiled through upstream's own CMakeLists."""

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import find_program, run
from tools.base.project import Project
from tools.base.stamp import Stamp
from tools.compile import cmake

_TARGET = "tagma"
_COMPILERS = ("c++", "g++", "clang++")

# CMakeLists.txt asks an installed PyTorch where its CMake files are, and wants a
# Torch package. The extension uses nothing of PyTorch, so these stand-ins make its
# build the same for every device, and possible before PyTorch is installed.
_STUB_FOLDER = "torch-stub"
_STUB = {
    "python/torch/__init__.py": "from torch import utils\n",
    "python/torch/utils/__init__.py": (
        "from pathlib import Path\n\n"
        'cmake_prefix_path = str(Path(__file__).resolve().parents[3] / "cmake")\n'
    ),
    "cmake/Torch/TorchConfig.cmake": (
        "if(NOT TARGET torch)\n"
        "  add_library(torch INTERFACE IMPORTED)\n"
        "endif()\n"
        'set(TORCH_LIBRARIES "")\n'
        "set(TORCH_FOUND TRUE)\n"
    ),
}


def build(project: Project) -> Path:
    """Compile what is out of date and return the extension's file.

    The file holds no path of this machine and no time: the same source, compiler
    and Python headers give the same bytes.

    Args:
        project: The project, with an applied tree.

    Raises:
        ToolError: A tool is missing, or the compilation fails.
    """
    _require_compiler()
    folder = project.build / "cmake"
    _configure(project, folder)
    _run_cmake(project, "compile", "--build", folder, "--target", _TARGET)
    target = project.build / "ext"
    # CMake compares times by the second and would keep a file of the same one.
    shutil.rmtree(target, ignore_errors=True)
    _run_cmake(project, "install", "--install", folder, "--component", _TARGET,
               "--prefix", target, "--strip")  # fmt: skip
    return target / "vllm" / f"{_TARGET}.abi3.so"


def load(path: Path) -> Any:
    """Load the compiled extension by itself, without the package vllm.

    Raises:
        ToolError: It cannot be imported.
    """
    spec = importlib.util.spec_from_file_location("tagma", path)
    assert spec and spec.loader
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ToolError(
            Outcome.MISSING_TOOL,
            f"the extension {path} cannot be imported: {error}",
            ("Build it: python -m tools build",),
        ) from error
    return module


def build_variant(project: Project, source: Path, name: str, *defines: str) -> Path:
    """Compile another engine, without CMake.

    Args:
        project: The project.
        source: Folder of the engine's sources.
        name: Of the variant.
        defines: Constants with other values, as `NAME=VALUE`.

    Returns:
        The extension's file, fit for a comparison only.

    Raises:
        ToolError: A tool is missing, or the compilation fails.
    """
    _require_compiler()
    named = os.environ.get("CXX", "").split()
    compiler = named or [next(name for name in _COMPILERS if find_program(name))]
    target = project.build / "bench" / f"{_TARGET}-{name}.abi3.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    run([*compiler, "-std=c++17", "-O2", "-fPIC", "-shared",
         # Else the tables of the first that is loaded serve all of them.
         "-fvisibility=hidden",
         *(f"-D{define}" for define in defines),
         "-DPy_LIMITED_API=0x030B0000", f"-I{sysconfig.get_path('include')}",
         source / "tagma_bindings.cpp", "-o", target])  # fmt: skip
    return target


def _configure(project: Project, folder: Path) -> None:
    arguments = _arguments(project.tree, folder)
    inputs = {
        "cmake": str(cmake.tool("cmake")),
        "compiler": os.environ.get("CXX", ""),
        "arguments": "\n".join(arguments),
    }
    stamp = Stamp(folder / "configured.json")
    if not stamp.fits(inputs):
        console.note("configure the extension …")
        shutil.rmtree(folder, ignore_errors=True)
        _write_stub(folder / _STUB_FOLDER)
        _run_cmake(project, "configure", *arguments)
        stamp.write(inputs)


def _run_cmake(project: Project, step: str, *arguments: str | Path) -> None:
    # DESTDIR would move the installed file elsewhere.
    env = {name: text for name, text in os.environ.items() if name != "DESTDIR"}
    env["PYTHONPATH"] = str(project.build / "cmake" / _STUB_FOLDER / "python")
    log = project.build / "logs" / f"extension-{step}.log"
    cmake.run(log, *arguments, env=env)


def _arguments(tree: Path, folder: Path) -> list[str]:
    """Return the arguments of the configuring run."""
    flags = " ".join(f'"-ffile-prefix-map={path}=."' for path in (tree, folder))
    return [
        *("-G", "Ninja", "-S", str(tree), "-B", str(folder)),
        f"-DCMAKE_MAKE_PROGRAM={cmake.tool('ninja')}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        f"-DCMAKE_CXX_FLAGS={flags}",
        "-DCMAKE_MODULE_LINKER_FLAGS=-Wl,--build-id=none",
        f"-DVLLM_PYTHON_EXECUTABLE={sys.executable}",
        # Any other device stops CMakeLists.txt above all devices' own targets.
        "-DVLLM_TARGET_DEVICE=empty",
    ]


def _require_compiler() -> None:
    named = os.environ.get("CXX", "").split()
    if not any(find_program(name) for name in named[:1] or _COMPILERS):
        raise ToolError(
            Outcome.MISSING_TOOL,
            f"no C++ compiler: {named[0] if named else 'g++'} is not installed",
            ("Install g++ 11.3 or newer, for example: apt-get install g++",),
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise ToolError(
            Outcome.MISSING_TOOL,
            f"the C headers of {sys.executable} are not installed",
            ("Install them, for example: apt-get install python3-dev",),
            (f"looked for {header}",),
        )


def _write_stub(folder: Path) -> None:
    for name, text in _STUB.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
