"""What becomes of mutants: every test that must see one has to fail on it."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.base.errors import ToolError
from tools.base.project import Project
from tools.check.mutant import Killer, Mutant
from tools.check.specimen import Ran, prepared


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Args:
        mutant: The mutant.
        runs: How its tests ended on it.
        problem: Why it could not be tried; empty: it was.
        seconds: What trying it took.
    """

    mutant: Mutant
    runs: dict[Killer, Ran] = field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0

    @property
    def killed_by(self) -> tuple[Killer, ...]:
        """The tests that saw it."""
        return tuple(test for test, ran in self.runs.items() if not ran.passed)

    @property
    def missed_by(self) -> tuple[Killer, ...]:
        """The tests that should have."""
        return tuple(test for test, ran in self.runs.items() if ran.passed)

    @property
    def is_killed(self) -> bool:
        """Whether all of its tests saw it."""
        return not self.problem and not self.missed_by

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "mutant": self.mutant.name,
            "title": self.mutant.title,
            "killed": self.is_killed,
            "killed_by": [str(killer) for killer in self.killed_by],
            "missed_by": [str(killer) for killer in self.missed_by],
            "problem": self.problem,
            "seconds": round(self.seconds, 1),
        }


def judge(
    project: Project,
    python: Path,
    mutants: list[Mutant],
    workers: int,
    on_test: Callable[[], None],
) -> list[Verdict]:
    """Try mutants, and their tests without any: they must pass there.

    Args:
        project: The project, with an applied tree.
        python: That of the environment that serves, which has the tree's vLLM.
        mutants: The mutants.
        workers: How many to try at once.
        on_test: Called after each test.

    Raises:
        ToolError: The tests cannot be run without any mutant.
    """
    tests = dict.fromkeys(killer for m in mutants for killer in m.killers)
    sound = _run(project, python, None, tests, on_test)

    def verdict(mutant: Mutant) -> Verdict:
        if problem := _problem(sound, mutant):
            return Verdict(mutant, problem=problem)
        try:
            runs = _run(project, python, mutant, mutant.killers, on_test)
        except ToolError as error:
            problem = "\n".join((str(error), *error.details))
            return Verdict(mutant, problem=problem)
        return Verdict(mutant, runs, seconds=sum(ran.seconds for ran in runs.values()))

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(verdict, mutants))


def _run(
    project: Project,
    python: Path,
    mutant: Mutant | None,
    tests: Iterable[Killer],
    on_test: Callable[[], None],
) -> dict[Killer, Ran]:
    runs = {}
    with prepared(project, python, mutant) as specimen:
        for test in tests:
            runs[test] = specimen.run(test)
            on_test()
    return runs


def _problem(sound: dict[Killer, Ran], mutant: Mutant) -> str:
    """Return why a mutant's tests say nothing; empty if they would."""
    for killer in mutant.killers:
        if not sound[killer].found:
            return f"there is no test {killer}"
        if not sound[killer].passed:
            return f"{killer} fails without it, too"
    return ""
