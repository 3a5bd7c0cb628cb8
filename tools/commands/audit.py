"""`audit`: does the one extension file serve every supported Python?"""

import sys
from pathlib import Path

import click

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome, Report
from tools.base.process import find_program, run
from tools.cli.options import Settings, json_option
from tools.compile import cmake, extension
from tools.source import lockfile
from tools.source.fetch import Sdist
from tools.tree.tree import Tree

# Loads the file by itself and makes it work once.
_LOAD = """\
import importlib.util, platform, sys
spec = importlib.util.spec_from_file_location("tagma", sys.argv[1])
tagma = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tagma)
pool = tagma.KVAllocator(64)
request = pool.new_ranges()
pool.extend(request, 8)
assert request.block_ids() == list(range(8)), request.block_ids()
pool.release(request)
pool.check_invariants()
print(platform.python_version())
"""


@click.command("audit")
@json_option
@click.pass_obj
def command(settings: Settings, as_json: bool) -> None:
    """Check that the extension keeps to the limited API, and load it everywhere.

    Everywhere is this Python, and those of the supported ones that are on PATH.

    Example: python -m tools audit
    """
    project = settings.project
    with project.lock():
        Tree(project).apply(Sdist(project.cache))
        path = extension.build(project)
        # The next build puts another file in its place, so none may begin meanwhile.
        oldest = lockfile.pythons(lockfile.PYTHONS[:1])
        abi3audit = cmake.tool("abi3audit")
        run([abi3audit, "--strict", "--assume-minimum-abi3", oldest, path])
        loaded = {name: _load(python, path) for name, python in _find_pythons().items()}
    wanted = [lockfile.pythons([version]) for version in lockfile.PYTHONS]
    missing = [name for name in wanted if name not in loaded]
    details = [f"abi3audit --strict: nothing beyond the limited API of {oldest}"]
    details.append(f"loaded and used by Python {', '.join(loaded.values())}")
    if missing:
        details.append(f"not on PATH, so not tried: Python {', '.join(missing)}")
    console.show(
        Report(
            "audit",
            Outcome.DONE,
            f"{path} keeps to the limited API",
            details=tuple(details),
            data={"extension": str(path), "loaded": loaded, "missing": missing},
        ),
        as_json,
    )


def _find_pythons() -> dict[str, Path]:
    """Return the supported interpreters that run here, by version."""
    found = {}
    for version in lockfile.PYTHONS:
        name = lockfile.pythons([version])
        own = sys.version_info[:2] == version
        python = Path(sys.executable) if own else find_program(f"python{name}")
        # A version manager's stand-in may be there without the version.
        if python and run([python, "-c", ""], check=False).status == 0:
            found[name] = python
    return found


def _load(python: Path, path: Path) -> str:
    """Load the extension in an interpreter and return that one's full version.

    Raises:
        ToolError: It does not load, or does not work.
    """
    done = run([python, "-I", "-c", _LOAD, path], check=False)
    if done.status != 0:
        raise ToolError(
            Outcome.COMMAND_FAILED,
            f"{python} cannot use {path}",
            (),
            tuple(done.error_text.splitlines()[-10:]),
        )
    return done.text
