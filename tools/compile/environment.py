"""The virtual environment that serves: locked packages and the built wheel."""

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.base import console
from tools.base.digest import sha256
from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.process import run, run_watched
from tools.base.project import Project
from tools.base.stamp import Stamp
from tools.compile.wheel import VERSION_FILE
from tools.source import lockfile
from tools.source.index import IndexConfig, offline


def ensure(project: Project) -> bool:
    """Make the environment equal to its lock; return whether that took work.

    A killed run leaves no stamp, so the next one starts afresh.

    Raises:
        ToolError: This Python or machine is not covered by the lock, the lock does
            not fit its input, or a package cannot be installed.
    """
    _require_covered()
    locks = [
        project.root / "upstream" / f"{name}.lock"
        for name in ("cpu", "torch-cpu", "torch-index")
    ]
    for lock in locks:
        lockfile.check(lock.with_suffix(".in"), lock)
    inputs = {lock.stem: sha256(lock) for lock in locks}
    inputs["python"] = platform.python_version()
    stamp = Stamp(project.venv / "tagma-environment.json")
    if stamp.fits(inputs) and python(project).exists():
        return False
    shutil.rmtree(project.venv, ignore_errors=True)
    project.venv.parent.mkdir(parents=True, exist_ok=True)
    run([sys.executable, "-m", "venv", project.venv])
    packages, torch_cpu, torch_index = locks
    _install_lock(project, packages)
    try:
        _install_lock(project, torch_cpu)
    except ToolError:
        console.note("pip finds no CPU build of torch; the default one takes 3 GB")
        _install_lock(project, torch_index)
    stamp.write(inputs)
    return True


def install(project: Project, wheel: Path, inputs: Mapping[str, str]) -> bool:
    """Install the built wheel; return whether that took work.

    Args:
        project: The project, with an environment.
        wheel: The wheel.
        inputs: What identifies the wheel's content.

    Raises:
        ToolError: pip fails.
    """
    stamp = _installed(project)
    if stamp.fits(inputs):
        return False
    stamp.clear()
    with console.step(f"install {wheel.name}"):
        _pip(project, "install", "install", "--no-index", "--force-reinstall", wheel)
    stamp.write(inputs)
    return True


def install_in_place(project: Project, variables: Mapping[str, str]) -> None:
    """Install the tree itself through upstream's setup.py.

    Args:
        project: The project, with a tree and an environment.
        variables: Environment variables that setup.py reads.

    Raises:
        ToolError: The build fails.
    """
    _installed(project).clear()
    with console.step(f"install {project.tree} in place (about a minute)"):
        _setup_py(project, "in-place", variables, "install", "-e", project.tree)


def build_wheel(project: Project, target: Path, variables: Mapping[str, str]) -> Path:
    """Build a wheel of the tree through upstream's setup.py and return it.

    Args:
        project: The project, with a tree and an environment.
        target: Folder for the wheel; what is in it is removed.
        variables: Environment variables that setup.py reads.

    Raises:
        ToolError: The build fails.
    """
    shutil.rmtree(target, ignore_errors=True)
    with console.step("compile all of vLLM (an hour or more)"):
        _setup_py(project, "full", variables, "wheel", "-w", target, project.tree)
    return next(target.glob("*.whl"))


def torch_version(project: Project) -> str | None:
    """Return the version of torch in the environment, if there is one."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    if not python(project).exists():
        return None
    done = run([python(project), "-I", "-c", code], check=False)
    return done.text if done.status == 0 else None


def python(project: Project) -> Path:
    """Return the environment's interpreter."""
    return project.venv / "bin" / "python"


def _installed(project: Project) -> Stamp:
    return Stamp(project.venv / "tagma-installed.json")


def _require_covered() -> None:
    if sys.version_info[:2] not in lockfile.PYTHONS:
        raise ToolError(
            Outcome.MISSING_TOOL,
            f"the lock covers Python {lockfile.pythons()}, not "
            f"{platform.python_version()}",
            ("Use one of them: make clean && make build PYTHON=python3.12",),
        )
    if sysconfig.get_platform() != "linux-x86_64":
        raise ToolError(
            Outcome.MISSING_TOOL,
            f"the lock does not cover {sysconfig.get_platform()}",
            ("Build on x86-64 Linux",),
        )


def _install_lock(project: Project, lock: Path) -> None:
    # pip asks an index that is out of reach six times for each package; what it has
    # from a local folder or its cache it finds without.
    unreachable = IndexConfig.from_pip().unreachable()
    options = ("--retries=0", "--timeout=1") if unreachable else ()
    try:
        _install_packages(project, lock, *options)
    except ToolError as error:
        lacks = any("No matching distribution" in line for line in error.details)
        if not (unreachable and lacks):
            raise
        raise offline(
            f"a package of {lock.name}",
            unreachable,
            f"or set PIP_FIND_LINKS to a folder with the files of {lock.name}",
        ) from error


def _install_packages(project: Project, lock: Path, *options: str) -> None:
    total = len(lockfile.read_packages(lock.with_suffix(".in")))
    with console.step(f"fetch the {total} packages of {lock.name}", total) as step:

        def show(line: str) -> None:
            if line.startswith(("Collecting ", "Processing ", "Ignoring ")):
                step.advance(1)
            elif line.startswith("Installing collected packages"):
                console.note("install them (a minute or two) …")

        _pip(
            project,
            f"environment-{lock.stem}",
            "install",
            "--require-hashes",
            *options,
            "-r",
            lock,
            on_line=show,
        )


def _setup_py(
    project: Project,
    step: str,
    variables: Mapping[str, str],
    command: str,
    *arguments: str | Path,
) -> None:
    """Run a pip command that calls the tree's setup.py, then tidy the tree."""
    # setup.py calls cmake and ninja by name; the lock brings both.
    path = f"{python(project).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        _pip(
            project,
            step,
            command,
            "--no-index",
            "--no-build-isolation",
            *arguments,
            env=os.environ | variables | {"PATH": path},
        )
    finally:
        # The sdist ships the file in which setuptools-scm writes the version; in a
        # commit upstream ignores it.
        tree = Repository(project.tree)
        if tree.resolve(f"HEAD:{VERSION_FILE}"):
            tree.git("checkout", "--quiet", "HEAD", "--", VERSION_FILE)


def _pip(
    project: Project,
    step: str,
    command: str,
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run the environment's own pip; what is installed is named, never resolved."""
    run_watched(
        # -I: nothing of the user's PYTHONPATH or home.
        [python(project), "-I", "-m", "pip", command, "--no-deps", *arguments],
        output=project.build / "logs" / f"{step}.log",
        on_line=on_line,
        env=env,
    )
