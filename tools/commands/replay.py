"""`replay`: placement policies on recorded and synthetic requests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.base.project import Project
from tools.cli.options import Settings, json_option
from tools.compile import extension
from tools.replay import plot, range_cost
from tools.replay.comparison import PolicyComparison, compare, tables, to_data
from tools.replay.experiment import BASELINES, Worker, watched
from tools.replay.plan import BLOCK_SIZES, PREFIX_CACHE, Plan
from tools.replay.tagma import Engine
from tools.replay.trace import POOL_REQUESTS
from tools.replay.workload import WORKLOADS
from tools.source.fetch import Sdist
from tools.tree.tree import Tree

_ENGINE = "tagma"
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("replay")
@click.option(
    "--trace", "traces", type=_FILE, multiple=True,
    help="Replay this trace instead: Mooncake's .jsonl or Azure's .csv.",
)  # fmt: skip
@click.option(
    "--full", is_flag=True, help="Every live share and block size; takes minutes."
)
@click.option(
    "--policy", "policies", type=click.Choice([*BASELINES, _ENGINE]), multiple=True,
    help="Only these policies.",
)  # fmt: skip
@click.option(
    "--workload", "workloads", multiple=True,
    type=click.Choice([workload.name for workload in WORKLOADS]),
    help="Only these synthetic workloads.",
)  # fmt: skip
@click.option(
    "--prefix-cache", type=click.Choice(list(PREFIX_CACHE)), default="both",
    show_default=True, help="Synthetic workloads with or without it.",
)  # fmt: skip
@click.option(
    "--block-size", "block_sizes", type=click.Choice(BLOCK_SIZES), multiple=True,
    help="Only these; 16 by default.",
)  # fmt: skip
@click.option(
    "--live-share", "shares", type=click.FloatRange(0.01, 1.0), multiple=True,
    help="Part of the pool for running requests; 0.7 and 0.9 by default.",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(1), default=32, show_default=True,
    help="Requests that run at once, on synthetic workloads.",
)  # fmt: skip
@click.option(
    "--turnovers", type=click.IntRange(1), default=6, show_default=True,
    help="How often these are replaced.",
)  # fmt: skip
@click.option(
    "--seeds", type=click.IntRange(1), default=3, show_default=True,
    help="How many seeds to run synthetic workloads with.",
)  # fmt: skip
@click.option(
    "--requests", type=click.IntRange(1), help="Only the first requests of a trace."
)
@click.option(
    "--pool-tokens", type=click.IntRange(1),
    help=f"Size of the pool for a trace; room for {POOL_REQUESTS} requests by default.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True,
    help="Processes to use.",
)  # fmt: skip
@click.option(
    "--engine", "builds", multiple=True, metavar="[NAME=]FILE",
    help="A build of vllm.tagma to use instead of the tree's; several are compared.",
)  # fmt: skip
@click.option(
    "--range-cost", "range_costs", type=click.IntRange(1), multiple=True,
    help="Compare engines that find a range worth so many blocks instead.",
)  # fmt: skip
@click.option("--plot", "plots", is_flag=True, help="Draw hits against runs.")
@json_option
@click.pass_obj
def command(
    settings: Settings,
    /,
    policies: tuple[str, ...],
    jobs: int,
    builds: tuple[str, ...],
    range_costs: tuple[int, ...],
    plots: bool,
    as_json: bool,
    **plan: Any,
) -> None:
    """Compare where policies place KV blocks: the engine's, paged's and classic ones.

    Drives each with the same requests through a model of the scheduler, and counts
    the contiguous runs per request and the tokens found in the prefix cache.

    Example: python -m tools replay --trace mooncake_conversation.jsonl --plot

    The default takes a minute or two of one core; --full several times that.
    """
    project = settings.project
    engines = _named(builds) | range_cost.build_all(project, range_costs)
    chosen = [name for name in BASELINES if not policies or name in policies]
    if not policies or _ENGINE in policies:
        chosen += engines or [_ENGINE]
    cases = Plan(**plan).cases(chosen)
    if _ENGINE in chosen and not engines:
        engines = {_ENGINE: _build(project)}
    worker = Worker({engine: Engine(file) for engine, file in engines.items()})
    comparisons = compare(watched(cases, worker, jobs))
    name = "replay-trace.json" if plan["traces"] else "replay.json"
    written = _write(comparisons, project.build / "bench" / name, plots)
    if not as_json:
        for table in tables(comparisons):
            console.show_table(table)
    message = f"{len(cases)} runs of {len(chosen)} policies"
    data = _data(comparisons)
    console.show(Report("replay", Outcome.DONE, message, (), written, data), as_json)


def _data(comparisons: Sequence[PolicyComparison]) -> dict[str, Any]:
    return {"comparisons": to_data(comparisons)}


def _write(
    comparisons: Sequence[PolicyComparison], file: Path, plots: bool
) -> tuple[str, ...]:
    """Write all values, and the plot beside them; say where."""
    text = json.dumps(_data(comparisons), indent=2) + "\n"
    atomic.write(file, text.encode())
    written = (f"all values: {file}",)
    if not plots:
        return written
    image = file.with_suffix(".png")
    plot.draw(comparisons, image)
    return (*written, f"plot: {image}")


def _named(builds: Sequence[str]) -> dict[str, Path]:
    """Return the files of engines by the names of their policies."""
    files: dict[str, Path] = {}
    for text in builds:
        given, _, file = text.rpartition("=")
        name = given or _ENGINE
        if not Path(file).is_file():
            raise click.UsageError(f"--engine: there is no file {file}")
        if name in BASELINES or name in files:
            raise click.UsageError(f"--engine: the name {name} is taken")
        files[name] = Path(file).resolve()
    return files


def _build(project: Project) -> Path:
    """Return the extension of the current tree."""
    with project.lock():
        Tree(project).apply(Sdist(project.cache))
        return extension.build(project)
