"""`test`: run the jobs of make test."""

import sys
from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.base.project import CHECKOUT, Project
from tools.check.board import Board
from tools.check.cores import usable
from tools.check.jobs import GROUPS, NAMES, Job, chosen, with_preparations
from tools.check.runner import Runner
from tools.check.running import Ended, Running
from tools.cli.options import Settings, json_option

_GROUPS = "; ".join(f"{name} is {', '.join(jobs)}" for name, jobs in GROUPS.items())


class _PassesWords(click.Command):
    """Keeps the words behind `--` for a job, in `ctx.meta`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before `--`."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["words"] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


@click.command(
    "test",
    cls=_PassesWords,
    options_metavar="[OPTIONS]",
    epilog=f"Groups, by what a change touches: {_GROUPS}.",
)
@click.argument("jobs", nargs=-1, type=click.Choice((*NAMES, *GROUPS)))
@click.option(
    "--cores",
    type=click.IntRange(1),
    help="Run on so many; default: all, or fewer where memory is short.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context, jobs: tuple[str, ...], cores: int | None, as_json: bool
) -> None:
    """Run jobs side by side, all of them by default.

    What they share, the tree and the build, is made first. Words behind `--` go to
    the one job that is named, which passes them to pytest. One job alone shows its
    output as it comes; that of several is kept in build/logs/test and shown when
    each ends.

    Example: python -m tools test lint engine
    """
    settings: Settings = ctx.obj
    wanted = chosen(jobs)
    words: tuple[str, ...] = ctx.meta["words"]
    if words and not (len(wanted) == 1 and wanted[0].takes_arguments):
        raise click.UsageError("words behind -- go to one job that runs pytest")
    alone = len(wanted) == 1
    logs = None if alone else settings.project.build / "logs" / "test"
    planned = with_preparations(wanted)

    def launch(job: Job, workers: int) -> Running:
        commands = [
            [*_tools(settings.project), *command]
            for command in job.resolved(workers, words)
        ]
        log = logs / f"{job.name}.log" if logs else None
        return Running(job, commands, workers, log, to_stderr=as_json)

    out = sys.stderr if as_json else sys.stdout
    board = Board(out, {job.name: job.seconds for job in planned})
    ends = Runner(launch, cores or usable(), board).run(planned)
    results = [end for end in ends if end.job in NAMES]
    failed = [end for end in ends if not end.passed]
    report = _report(results, failed)
    console.show(report, as_json)
    if not as_json:
        print(report.message)  # the line that CI systems look for
    ctx.exit(report.outcome.exit_code)


def _tools(project: Project) -> list[str]:
    """Return how to call the tools on a project, in a process of its own."""
    words = [sys.executable, "-m", "tools"]
    if project != Project.at(CHECKOUT):
        words += ["--project", str(project.root), "--build", str(project.build)]
    return words


def _report(results: list[Ended], failed: list[Ended]) -> Report:
    """Return what became of the jobs, and of preparations that failed."""
    bad = sum(not end.passed for end in results)
    steps = []
    for end in failed:
        if end.status is not None:
            alone = f"ci/{end.job}" if end in results else f"python -m tools {end.job}"
            steps.append(f"Run it alone: {alone}")
            steps += [f"Read {end.log}"] if end.log else []
    return Report(
        "test",
        Outcome.COMMAND_FAILED if failed else Outcome.DONE,
        f"{len(results) - bad} passed, {bad} failed",
        tuple(steps),
        tuple(str(end) for end in dict.fromkeys((*results, *failed))),
        {"jobs": [_data(end) for end in results]},
    )


def _data(end: Ended) -> dict[str, object]:
    log: Path | None = end.log
    return {
        "job": end.job,
        "status": end.status,
        "seconds": end.seconds,
        "log": str(log) if log else None,
    }
