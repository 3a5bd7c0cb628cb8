"""`mutants`: whether the tests see what they are there for."""

import click
from rich.table import Table

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.check.mutant import read_all
from tools.check.mutation import Verdict, judge
from tools.cli.options import Settings, json_option, workers_option
from tools.serve.serving import ensure_host


@click.command("mutants")
@click.argument("names", nargs=-1)
@workers_option("Mutants that are tried at once.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, names: tuple[str, ...], workers: int, as_json: bool
) -> None:
    """Break promises on purpose, and see that the tests which guard them fail.

    A mutant is a patch in tests/tools/mutants, on top of the patched tree; its head
    names the tests that must fail with it. Runs just these, on a copy, for all
    mutants or for NAMES. Exit code 1 if a test passes all the same, fails without the
    mutant, or is not there, or if a patch does not apply or compile.

    Example: python -m tools mutants wrong-order-of-copies
    """
    settings: Settings = ctx.obj
    project = settings.project
    mutants = read_all(project.root, names)
    with project.lock():
        host = ensure_host(project)
        tests = {killer for mutant in mutants for killer in mutant.killers}
        total = len(tests) + sum(len(mutant.killers) for mutant in mutants)
        with console.step(f"try {len(mutants)} mutants", total) as step:
            verdicts = judge(
                project, host.python, mutants, workers, lambda: step.advance(1)
            )
    if not as_json:
        console.show_table(_table(verdicts))
    report = _report(verdicts)
    atomic.write_json(project.build / "bench" / "mutants.json", report.data)
    console.show(report, as_json)
    ctx.exit(report.outcome.exit_code)


def _table(verdicts: list[Verdict]) -> Table:
    table = Table("mutant", "what is wrong", "killed by", "seconds")
    for verdict in verdicts:
        tests = [f"[green]{test}[/]" for test in verdict.killed_by]
        tests += [f"[red]survived {test}[/]" for test in verdict.missed_by]
        tests += [f"[red]{verdict.problem}[/]"] if verdict.problem else []
        table.add_row(
            verdict.mutant.name,
            verdict.mutant.title,
            "\n".join(tests),
            f"{verdict.seconds:.0f}",
        )
    return table


def _report(verdicts: list[Verdict]) -> Report:
    alive = [verdict.mutant.name for verdict in verdicts if not verdict.is_killed]
    data = {"mutants": [verdict.to_data() for verdict in verdicts]}
    if not alive:
        message = f"{len(verdicts)} mutants, each killed by all of its tests"
        return Report("mutants", Outcome.DONE, message, data=data)
    return Report(
        "mutants",
        Outcome.COMMAND_FAILED,
        f"{len(alive)} of {len(verdicts)} mutants are alive or could not be tried",
        ("Mend the test that missed it, or the mutant: tests/tools/mutants",),
        tuple(alive),
        data,
    )
