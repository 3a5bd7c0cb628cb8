"""The offloading benchmark's tables."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from tools.replay.offload.copies import Made
from tools.replay.offload.pools import KEPT_BLOCKS, OffloadRun
from tools.replay.offload.result import OffloadBenchmark


def tables(bench: OffloadBenchmark) -> Iterator[Table]:
    """Yield counts, copies, and the goals that are missed."""
    yield _counts(bench)
    yield _made(bench.made)
    missed = [goal for goal in bench.goals() if not goal.is_met]
    if missed:
        table = _table("missed goals", ("load", "measure"), ("counted", "goal"))
        for one in missed:
            table.add_row(one.load, one.measure, f"{one.value:g}", f"{one.limit:g}")
        yield table


def _counts(bench: OffloadBenchmark) -> Table:
    table = _table(
        "runs a transfer: copies of a tensor, where neighbours are merged",
        ("load", "backend"),
        (
            *("hits in the pool", "in host memory", "stores", "blocks", "runs"),
            *("loads", "blocks", "runs"),
        ),
    )
    for load, *sides in bench.pairs:
        for runs in sides:
            table.add_row(load, runs[0].backend, *_cells(runs))
        table.add_section()
    table.caption = (
        f"A pool of {bench.setting.num_blocks:,} blocks, of which requests may hold "
        f"{bench.setting.decode_share:.0%}; hits in tokens, of all seeds. Upstream "
        "merges nothing: its copies of a tensor are the blocks."
    )
    return table


def _cells(runs: Sequence[OffloadRun]) -> Iterator[str]:
    yield f"{sum(run.hit_tokens for run in runs):,}"
    yield f"{sum(run.loaded_tokens for run in runs):,}"
    for kind in ("stores", "loads"):
        transfers = [t for run in runs for t in run.directions[kind].transfers]
        count = max(1, len(transfers))
        yield f"{len(transfers):,}"
        yield f"{sum(t.blocks for t in transfers) / count:,.1f}"
        yield f"{sum(t.runs for t in transfers) / count:,.2f}"


def _made(made: Sequence[Made]) -> Table:
    table = _table(
        f"a transfer of about {KEPT_BLOCKS} blocks",
        ("side", ""),
        ("copies", "MiB", "list, ms", "elapsed, ms"),
    )
    for one in made:
        table.add_row(
            one.side, one.kind, f"{one.copies:,.0f}", f"{one.bytes / 2**20:,.1f}",
            f"{one.list_ms:,.2f}", f"{one.elapsed_ms:,.1f}",
        )  # fmt: skip
    table.caption = (
        "list: CPU time of the thread to make the list of copies and hand it over; "
        "medians over the rounds; every byte was checked."
    )
    return table


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left"
    )
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table
