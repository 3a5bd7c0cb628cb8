"""A copy of the patched tree, with a mutant in it or none, in which tests run."""

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.base.git import Repository
from tools.base.process import run
from tools.base.project import Project
from tools.check import engine, packages
from tools.check.mutant import Killer, Kind, Mutant
from tools.compile import cmake

_ENGINE = "csrc/tagma"
_EXTENSION = f"vllm/{engine.EXTENSION}"
_BINDING_TESTS = "tests/v1/core/test_tagma_engine.py"
# Compiles fast; -O1 finds what a million random operations find soon enough.
_OPTIONS = ("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1")
# That a test fails is enough: hypothesis would look for the least example for minutes.
_PLUGIN = "no_shrinking"
_NO_SHRINKING = """\
from hypothesis import Phase, settings

settings.register_profile("no shrinking", phases=[Phase.explicit, Phase.generate])
settings.load_profile("no shrinking")
"""
_PYTEST = ("-m", "pytest", "-qx", "-p", "no:cacheprovider", "-p", _PLUGIN)
# Prints where a vLLM is installed, without importing it.
_WHERE = """\
from importlib.util import find_spec
print(find_spec("vllm").submodule_search_locations[0])
"""
_NONE_RAN = re.compile(rb"\[  PASSED  \] 0 tests")
_NO_TESTS = (4, 5)  # what pytest returns


@dataclass(frozen=True)
class Ran:
    """How a test ended.

    Args:
        passed: Whether it did.
        found: Whether there is such a test.
        seconds: With what had to be compiled for it.
        log: What was written.
    """

    passed: bool
    found: bool
    seconds: float
    log: Path


# A mutant that never ends is seen, too; a test takes a minute at most.
_LIMITED = ("timeout", "900")


@dataclass(frozen=True)
class Specimen:
    """The copy.

    Args:
        project: The project, with an applied tree.
        python: That of the environment that serves.
        folder: The copy. What is not changed in its vllm are links.
    """

    project: Project
    python: Path
    folder: Path

    def run(self, killer: Killer) -> Ran:
        """Run a test.

        Raises:
            ToolError: The engine does not compile.
        """
        began = time.monotonic()
        runs = {
            Kind.NATIVE: self._run_native,
            Kind.BINDING: self._run_binding,
            Kind.OVERLAY: self._run_overlay,
        }
        log = self.folder / "test.log"
        log.unlink(missing_ok=True)
        status = runs[killer.kind](killer.test, log)
        found = status not in _NO_TESTS and not _NONE_RAN.search(log.read_bytes())
        return Ran(status == 0, found, time.monotonic() - began, log)

    def _run_native(self, test: str, log: Path) -> int:
        program, _, only = test.partition(" ")
        folder = self.folder / "engine"
        if not folder.is_dir():
            prefix = packages.googletest(self.project.build / "googletest")
            source = self.folder / _ENGINE / "tests"
            entries = (f"-DCMAKE_PREFIX_PATH={prefix}", *_OPTIONS)
            ninja = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={cmake.tool('ninja')}")
            cmake.run(log, *ninja, *entries, "-S", source, "-B", folder)
        cmake.run(log, "--build", folder, "--target", program)
        command = (*_LIMITED, folder / program, f"--gtest_filter={only}")
        return run(command, check=False, output=log).status

    def _run_binding(self, test: str, log: Path) -> int:
        # Beside a vllm that needs nothing.
        folder = self.folder / "binding"
        if not folder.is_dir():
            (folder / "vllm").mkdir(parents=True)
            (folder / "vllm" / "__init__.py").touch()
            shutil.copy(self.folder / _BINDING_TESTS, folder)
            shutil.copy(self.folder / _EXTENSION, folder / "vllm")
        command = [
            *(sys.executable, *_PYTEST, "-c", os.devnull, "--rootdir", "."),
            *("--noconftest", f"{Path(_BINDING_TESTS).name}::{test}"),
        ]
        return self._run_pytest(command, folder, log)

    def _run_overlay(self, test: str, log: Path) -> int:
        settings = str(self.project.tree / "pyproject.toml")
        command = [
            *(str(self.python), *_PYTEST, "-c", settings, "--rootdir", "."),
            test,
        ]
        return self._run_pytest(command, self.folder, log)

    def _run_pytest(self, command: Sequence[str], folder: Path, log: Path) -> int:
        variables = {
            # The folder itself comes before, and with it its vllm.
            "PYTHONPATH": str(self.folder / _PLUGIN),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TRITON_INTERPRET": "1",
        }
        env = os.environ | variables
        limited = (*_LIMITED, *command)
        return run(limited, cwd=folder, env=env, check=False, output=log).status


@contextmanager
def prepared(
    project: Project, python: Path, mutant: Mutant | None
) -> Iterator[Specimen]:
    """Make a copy for as long as it is needed.

    Args:
        project: The project, with an applied tree.
        python: That of the environment that serves, which has the tree's vLLM.
        mutant: What to change; None: nothing.

    Raises:
        ToolError: The patch does not apply, or the engine does not compile with it.
    """
    folder = project.build / "mutants" / (mutant.name if mutant else "sound")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tree = project.tree
    shutil.copytree(tree / _ENGINE, folder / _ENGINE)
    (folder / "tests").symlink_to(tree / "tests")
    (folder / _PLUGIN).mkdir()
    (folder / _PLUGIN / f"{_PLUGIN}.py").write_text(_NO_SHRINKING)
    installed = Path(run([python, "-c", _WHERE], cwd=folder).text)
    shutil.copytree(installed, folder / "vllm", copy_function=os.symlink)
    if mutant:
        _change(tree, folder, mutant)
    yield Specimen(project, python, folder)
    shutil.rmtree(folder)  # of one that failed, the log is left


def _change(tree: Path, folder: Path, mutant: Mutant) -> None:
    """Apply a mutant's patch to a copy of the tree."""
    for target in mutant.targets:
        (folder / target).unlink(missing_ok=True)
        if (tree / target).is_file():
            shutil.copy(tree / target, folder / target)
    Repository(tree).git("apply", mutant.path, work_tree=folder)
    if any(target.startswith(_ENGINE) for target in mutant.targets):
        (folder / _EXTENSION).unlink()
        engine.compile_binding(folder / _ENGINE, folder / "vllm")
