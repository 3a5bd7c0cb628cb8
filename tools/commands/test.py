"""`test`: run the jobs of ci/."""

import time
from dataclasses import dataclass

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.base.process import run_visibly
from tools.cli.options import Settings, json_option

# Cheap ones first, so that a mistake shows early.
JOBS = (
    "series",
    "lint",
    "tools",
    "engine",
    "fuzz",
    "overlay",
    "host",
    "upstream",
    "next",
    "demo",
)


@dataclass(frozen=True)
class Result:
    """How one job ended.

    Args:
        job: Its name in ci/.
        status: Its exit status.
        seconds: Wall-clock time.
    """

    job: str
    status: int
    seconds: float

    def __str__(self) -> str:
        """Return the job's line of the summary."""
        verdict = "passed" if self.status == 0 else f"failed ({self.status})"
        return f"{self.job}: {verdict}, {self.seconds:.0f} s"


@click.command("test")
@click.argument("jobs", nargs=-1, type=click.Choice(JOBS))
@json_option
@click.pass_obj
def command(settings: Settings, jobs: tuple[str, ...], as_json: bool) -> None:
    """Run the jobs of ci/, all of them by default.

    Example: python -m tools test lint engine
    """
    results = []
    for job in jobs or JOBS:
        console.note(f"== {job}")
        begin = time.monotonic()
        status = run_visibly([settings.project.root / "ci" / job], to_stderr=as_json)
        results.append(Result(job, status, time.monotonic() - begin))
        console.note(f"== {results[-1]}")
    failed = [result for result in results if result.status != 0]
    outcome = Outcome.COMMAND_FAILED if failed else Outcome.DONE
    details = tuple(str(result) for result in results)
    passed = f"{len(results) - len(failed)} passed, {len(failed)} failed"
    steps = tuple(f"Run it alone: ci/{result.job}" for result in failed)
    data = {"jobs": [vars(result) for result in results]}
    console.show(Report("test", outcome, passed, steps, details, data), as_json)
    if not as_json:
        print(passed)  # the line that CI systems look for
    raise SystemExit(outcome.exit_code)
