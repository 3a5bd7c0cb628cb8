"""The transfer benchmark's tables."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from tools.replay.transfer.goal import mean_runs, p99_runs
from tools.replay.transfer.pools import PoolRun, Transfer
from tools.replay.transfer.result import TransferBenchmark, by_length

# Shown and no error: tagma's part of paged's CPU time for the longest probe, and of
# what paged needs above one run.
CPU_SHARE, CPU_SHARE_ABOVE_ONE_RUN = 0.30, 0.05


def tables(bench: TransferBenchmark) -> Iterator[Table]:
    """Yield the counts, the transfers, and the goals that are missed."""
    yield _counts(bench)
    if bench.moved:
        yield _transfers(bench)
    missed = [goal for goal in bench.goals() if not goal.is_met]
    if missed:
        made = _table("missed goals", ("load", "measure"), ("counted", "goal"))
        for goal in missed:
            made.add_row(goal.load, goal.measure, f"{goal.value:,g}", f"{goal.limit:g}")
        yield made


def _counts(bench: TransferBenchmark) -> Table:
    made = _table(
        "runs of contiguous blocks a transfer; those on both sides are descriptors",
        ("load", "backend", "prompts"),
        (
            *("transfers", "blocks", "prefill side", "decode side", "both sides"),
            *("p99", "moves a block"),
        ),
    )
    for load in bench.loads:
        for backend, runs in load.sides.items():
            for name, transfers in by_length(runs):
                moves = f"{_moves_a_block(runs):.2f}" if name == "all" else ""
                made.add_row(load.name, backend, name, *_cells(transfers), moves)
        made.add_section()
    setting = bench.setting
    made.caption = (
        f"Pools of {setting.num_blocks:,} blocks; requests may hold "
        f"{setting.prefill_share:.0%} of the prefill pool and "
        f"{setting.decode_share:.0%} of the decode pool. Moves are copies within a "
        "pool, by blocks transferred."
    )
    return made


def _cells(transfers: Sequence[Transfer]) -> Iterator[str]:
    count = max(1, len(transfers))
    yield f"{len(transfers):,}"
    yield f"{sum(each.blocks for each in transfers) / count:,.1f}"
    yield f"{sum(each.prefill_runs for each in transfers) / count:,.2f}"
    yield f"{sum(each.decode_runs for each in transfers) / count:,.2f}"
    yield f"{mean_runs(transfers):,.2f}"
    yield f"{p99_runs(transfers):,}"


def _moves_a_block(runs: Sequence[PoolRun]) -> float:
    moves = sum(run.prefill.moved_blocks + run.decode.moved_blocks for run in runs)
    return moves / max(1, sum(t.blocks for run in runs for t in run.transfers))


def _transfers(bench: TransferBenchmark) -> Table:
    made = _table(
        "transfers between two processes with NIXL over TCP",
        ("layout", "case", "side"),
        (
            *("descriptors", "MiB", "make, ms", "CPU, ms", "elapsed, ms"),
            *("CPU of paged's", "above one run"),
        ),
    )
    for each in bench.moved:
        made.add_row(
            each.layout, each.case, each.side, f"{each.descriptors:,.0f}",
            f"{each.bytes / 2**20:,.0f}", f"{each.make_ms:,.2f}",
            f"{each.cpu_ms:,.1f}", f"{each.elapsed_ms:,.1f}",
            *(f"{share:.2f}" for share in bench.cpu_shares(each).values()),
            end_section=each.side not in ("paged", "tagma"),
        )  # fmt: skip
    made.caption = (
        "CPU time of the decode process; medians over the rounds; every byte was "
        f"checked. Of paged's for 32,768 tokens at most {CPU_SHARE:.2f} was hoped for, "
        f"and {CPU_SHARE_ABOVE_ONE_RUN:.2f} above one run."
    )
    return made


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    made = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left"
    )
    for name in names:
        made.add_column(name, no_wrap=True)
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    return made
