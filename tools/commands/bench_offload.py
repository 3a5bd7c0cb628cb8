"""`bench-offload`: copies between a device's pool and host memory."""

import os
from pathlib import Path

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.replay.offload import bench, table
from tools.replay.offload.plan import SEEDS, OffloadPlan
from tools.replay.offload.result import OffloadBenchmark
from tools.serve.serving import ensure_host

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("bench-offload")
@click.option("--dry", is_flag=True, help="Without a GPU: copy between host tensors.")
@click.option(
    "--trace", type=_FILE, help="Mooncake's conversation trace, replayed, too."
)
@click.option(
    "--seeds", type=click.IntRange(1), default=SEEDS, show_default=True,
    help="How many seeds to run synthetic sessions with.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="A small pool.")
@click.option(
    "--jobs", type=click.IntRange(1), help="Processes to use; one a core by default."
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    dry: bool,
    trace: Path | None,
    seeds: int,
    quick: bool,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Count the copies of CPU offloading, upstream's and ours, then make some of them.

    The real managers of both sides serve conversations, coding agents and, with
    --trace, a recorded trace; upstream's worker then makes a store and a load, unmerged
    and merged, and every byte is checked. Counts decide the exit code, 1 if a goal is
    missed; times never do.

    Example: python -m tools bench-offload --dry --quick

    Takes about 10 minutes of two cores, with --quick less than one.
    """
    settings: Settings = ctx.obj
    project = settings.project
    with project.lock():
        host = ensure_host(project)
    if host.on_cpu and not dry:
        told = "not run: no GPU; --dry copies between host tensors"
        console.show(Report("bench-offload", Outcome.DONE, told), as_json)
        return
    jobs = jobs or len(os.sched_getaffinity(0))
    plan = OffloadPlan(trace, seeds, quick)
    result = bench.run(host, plan, jobs, project.build / "logs")
    if not as_json:
        for made in table.tables(result):
            console.show_table(made)
    report = _report(result, project.build / "bench" / "offload.json")
    console.show(report, as_json)
    ctx.exit(report.outcome.exit_code)


def _report(result: OffloadBenchmark, file: Path) -> Report:
    data, goals = result.to_data(), result.goals()
    atomic.write_json(file, data)
    missed = sum(not goal.is_met for goal in goals)
    return Report(
        "bench-offload",
        Outcome.DIFFERENT if missed else Outcome.DONE,
        f"{len(goals) - missed} of {len(goals)} goals met",
        details=(f"all values: {file}",),
        data=data,
    )
