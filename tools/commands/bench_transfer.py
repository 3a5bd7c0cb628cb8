"""`bench-transfer`: descriptors between a prefill and a decode pool."""

import os
from pathlib import Path

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.base.project import Project
from tools.cli.options import Settings, json_option
from tools.measure.pair.connector import install
from tools.replay.transfer import plot, table
from tools.replay.transfer.bench import TransferRun
from tools.replay.transfer.plan import SEEDS, TransferPlan
from tools.replay.transfer.result import TransferBenchmark
from tools.serve.serving import ensure_host

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("bench-transfer")
@click.option(
    "--trace", type=_FILE, help="Mooncake's conversation trace, replayed, too."
)
@click.option(
    "--seeds", type=click.IntRange(1), default=SEEDS, show_default=True,
    help="How many seeds to run synthetic sessions with.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Small pools and one layout.")
@click.option(
    "--jobs", type=click.IntRange(1), help="Processes to use; one a core by default."
)
@click.option("--plot", "image", type=_FILE, help="Draw descriptors against length.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    trace: Path | None,
    seeds: int,
    quick: bool,
    jobs: int | None,
    image: Path | None,
    as_json: bool,
) -> None:
    """Count the descriptors of transfers, then make some of them with NIXL's agents.

    The real managers, paged's and tagma's, serve the same requests as prefill and
    decode pools. Conversations, coding agents, the workloads of `replay` and, with
    --trace, a recorded trace; prompts of 512 to 32,768 new tokens are probed among
    them. Agents in two processes then move what the pools gave, in four layouts, and
    every byte is checked. Counts decide the exit code, 1 if a goal is missed; times
    never do.

    Example: python -m tools bench-transfer --trace mooncake_conversation.jsonl

    Takes about 15 minutes of two cores and 12 GiB, with --quick about one.
    """
    settings: Settings = ctx.obj
    project = settings.project
    with project.lock():
        host = ensure_host(project)
        sites = install(project, host.python)
    jobs = jobs or len(os.sched_getaffinity(0))
    choice = TransferPlan(trace, 1 if quick else seeds, quick)
    logs = project.build / "logs"
    bench = TransferRun(host, sites, logs, choice, jobs).run()
    report = _report(project, bench, image)
    if not as_json:
        for made in table.tables(bench):
            console.show_table(made)
    console.show(report, as_json)
    ctx.exit(report.outcome.exit_code)


def _report(project: Project, bench: TransferBenchmark, image: Path | None) -> Report:
    data, goals = bench.to_data(), bench.goals()
    file = project.build / "bench" / "transfer.json"
    atomic.write_json(file, data)
    written = [f"all values: {file}"]
    if image:
        plot.draw(bench, image)
        written.append(f"plot: {image}")
    missed = sum(not goal.is_met for goal in goals)
    return Report(
        "bench-transfer",
        Outcome.DIFFERENT if missed else Outcome.DONE,
        f"{len(goals) - missed} of {len(goals)} goals met",
        details=tuple(written),
        data=data,
    )
