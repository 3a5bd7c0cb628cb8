"""The overlays' tests on a release that has no CPU wheel yet.

The Python is the patched tree's; compiled members, packages and the version come from
an environment of an older release. What is tested is our Python and the extension on
the new release's Python, not upstream's kernels.
"""

import shutil
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import run_visibly
from tools.base.project import Project
from tools.compile import extension
from tools.tree import overlay

# A server starts only with the packages that its own release names.
_NEED_ITS_PACKAGES = (
    "tests/v1/core/test_kv_cache_backend.py"
    "::test_a_server_stops_at_a_refused_option_and_says_why",
)


def prepare(project: Project, environment: Path) -> Path:
    """Return a folder with a package `vllm` and its tests, ready to run.

    Args:
        project: The project, with an applied tree. The caller holds its lock.
        environment: A virtual environment with an older release, for the CPU.

    Raises:
        ToolError: The environment has no vLLM, or the extension does not compile.
    """
    installed = next(environment.glob("lib/python3*/site-packages/vllm"), None)
    if installed is None:
        raise ToolError(
            Outcome.MISSING_TOOL,
            f"{environment} has no vLLM",
            ("Make it: make build, in a checkout whose pin has a CPU wheel",),
        )
    folder = project.build / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(project.tree / "vllm", folder / "vllm")
    for member in installed.glob("*.so"):
        shutil.copy2(member, folder / "vllm")
    shutil.copy2(extension.build(project), folder / "vllm")
    (folder / "tests").symlink_to(project.tree / "tests")
    return folder


def run(
    project: Project,
    environment: Path,
    folder: Path,
    args: list[str],
    *,
    to_stderr: bool = False,
) -> int:
    """Run the overlays' tests in the interpreter and return pytest's status.

    Args:
        project: The project.
        environment: The virtual environment.
        folder: What `prepare` made.
        args: More arguments for pytest.
        to_stderr: Send what pytest says to standard error.
    """
    tests = [str(folder / test) for test in overlay.tests(project.root)]
    command = ["env", f"PYTHONPATH={folder}", "TRITON_INTERPRET=1"]
    command += [str(environment / "bin" / "python"), "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "-c", str(project.tree / "pyproject.toml")]
    command += ["--rootdir", str(folder), *args]
    command += [f"--deselect={test}" for test in _NEED_ITS_PACKAGES]
    command += tests
    return run_visibly(command, to_stderr=to_stderr)
