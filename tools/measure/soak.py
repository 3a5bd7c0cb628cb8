"""The long run of the scheduler on a nearly full pool, in the serving environment."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.base import console
from tools.base.errors import ToolError
from tools.base.process import run_watched
from tools.base.project import Project
from tools.serve.host import Host

_MODULE = "tests.v1.core.tagma_soak"


@dataclass
class Soaked:
    """What a run came to.

    Args:
        checks: What each check saw; see `Check` of the program.
        verdict: The end; None: the program died.
    """

    checks: list[dict[str, Any]] = field(default_factory=list)
    verdict: dict[str, Any] | None = None

    def read(self, line: str) -> int:
        """Take in a line of the program's output; return how many steps it took."""
        if not line.startswith("{"):
            return 0
        seen: dict[str, Any] = json.loads(line)
        if "problems" in seen:
            self.verdict = seen
            return 0
        before: int = self.checks[-1]["step"] if self.checks else 0
        self.checks.append(seen)
        return int(seen["step"]) - before

    @property
    def problems(self) -> tuple[str, ...]:
        """The promises that were broken."""
        return tuple(self.verdict["problems"]) if self.verdict else ()

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {"checks": self.checks, "verdict": self.verdict}


def run_soak(project: Project, host: Host, steps: int) -> Soaked:
    """Soak the tagma manager.

    Args:
        project: The project, with a tree.
        host: The environment that serves.
        steps: How many steps the scheduler takes under load.

    Raises:
        ToolError: The program died, for example of a broken invariant.
    """
    soaked = Soaked()
    env = host.neutral_environment() | {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONPATH": str(tests_beside_wheel(project)),
    }
    with console.step(f"take {steps:,} steps", steps) as step:
        try:
            run_watched(
                [host.python, "-m", _MODULE, str(steps)],
                output=project.build / "logs" / "soak.log",
                on_line=lambda line: step.advance(soaked.read(line)),
                env=env,
            )
        except ToolError:
            if not soaked.problems:
                raise
    return soaked


def tests_beside_wheel(project: Project) -> Path:
    """Return a folder from which upstream's tests can be imported.

    In the tree itself they lie beside its own vllm/, which would be imported
    instead of the installed one.
    """
    folder = project.build / "overlay-tests"
    folder.mkdir(exist_ok=True)
    link = folder / "tests"
    if not link.is_symlink():
        link.symlink_to(project.tree / "tests")
    return folder
