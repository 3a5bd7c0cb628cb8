"""The engine's tests in C++ and of its Python binding, both under sanitizers."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from tools.base.process import run, run_visibly
from tools.base.project import Project
from tools.check import packages
from tools.compile import cmake
from tools.compile.cmake import tool

# The extension's file, in the package vllm.
EXTENSION = "tagma.abi3.so"
_SANITIZE = "address;undefined"
_STUB = "vllm_overlay/tagma.pyi"
_BINDING_TESTS = tuple(
    f"tests/vllm/v1/core/test_tagma_{name}.py" for name in ("engine", "stub")
)


def run_native(project: Project, workers: int, *, to_stderr: bool = False) -> int:
    """Run the C++ tests, a million random operations included; return the status.

    Args:
        project: The project. The caller holds its lock.
        workers: Tests that run at once.
        to_stderr: Send what they say to standard error.

    Raises:
        ToolError: GoogleTest is missing, or the tests do not compile.
    """
    prefix = packages.googletest(project.build / "googletest")
    folder = cmake.build(
        project,
        "tests",
        f"CMAKE_PREFIX_PATH={prefix}",
        f"TAGMA_SANITIZE={_SANITIZE}",
    )
    return run_visibly(
        [
            *(tool("ctest"), "--test-dir", folder, "--output-on-failure"),
            *("-j", str(workers)),
        ],
        to_stderr=to_stderr,
    )


def run_binding(project: Project, *, to_stderr: bool = False) -> int:
    """Run the binding's own tests, without vLLM, and return pytest's status.

    Args:
        project: The project.
        to_stderr: Send what pytest says to standard error.

    Raises:
        ToolError: The binding does not compile.
    """
    folder = project.build / "engine-binding"
    package = folder / "vllm"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    shutil.copy(project.root / _STUB, package)
    compile_binding(
        project.root / "csrc_tagma",
        package,
        *("-g", f"-fsanitize={_SANITIZE.replace(';', ',')}"),
        "-fno-sanitize-recover=all",
    )
    # Python itself is built without sanitizers, so their library is loaded first, and
    # what the interpreter never frees is no leak of ours.
    env = os.environ | {
        "LD_PRELOAD": f"{_library('libasan.so')} {_library('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(folder),
    }
    return run_visibly(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull),
            *("--rootdir", ".", "--noconftest", "-p", "no:cacheprovider"),
            *("-W", "ignore::pytest.PytestUnknownMarkWarning"),
            *_BINDING_TESTS,
        ],
        cwd=project.root,
        env=env,
        to_stderr=to_stderr,
    )


def compile_binding(source: Path, package: Path, *options: str) -> None:
    """Compile the binding, quickly and not for speed.

    Args:
        source: The folder of the engine.
        package: The folder that receives the extension.
        options: More options for the compiler.

    Raises:
        ToolError: It does not compile.
    """
    run([
        *("g++", "-std=c++17", "-O1", "-shared", "-fPIC", *options),
        "-DPy_LIMITED_API=0x030B0000", f"-I{sysconfig.get_path('include')}",
        source / "tagma_bindings.cpp", "-o", package / EXTENSION,
    ])  # fmt: skip


def _library(name: str) -> Path:
    """Return the path of one of the compiler's own libraries."""
    return Path(run(["g++", f"-print-file-name={name}"]).text)
