"""Copies of a store and a load, made by upstream's worker."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tools import inside
from tools.base.process import run_watched
from tools.base.project import CHECKOUT
from tools.replay.offload.pools import OffloadRun
from tools.replay.transfer.pools import PAGED, TAGMA
from tools.serve.host import Host

# The first two differ only in that neighbouring copies are merged.
UNMERGED, MERGED, PLACED = "paged, unmerged", "paged, merged", "tagma, merged"
_MEASURES = ("copies", "bytes", "list_ms", "elapsed_ms")


@dataclass(frozen=True)
class CopySetting:
    """The memory of both sides.

    Args:
        tensors: Of the KV cache.
        page_bytes: Bytes of a block in each.
        num_blocks: Blocks of the device.
        num_chunks: Blocks that the host has memory for.
        rounds: How often each transfer is made.
    """

    tensors: int
    page_bytes: int
    num_blocks: int
    num_chunks: int
    rounds: int


@dataclass(frozen=True)
class Made:
    """A transfer of one side; times are medians over the rounds.

    Args:
        side: `UNMERGED`, `MERGED` or `PLACED`.
        kind: "stores" or "loads".
        copies: What the copy engine was handed.
        bytes: What they have together.
        list_ms: The thread's CPU time to make and hand over the list.
        elapsed_ms: Its duration.
    """

    side: str
    kind: str
    copies: int
    bytes: int
    list_ms: float
    elapsed_ms: float


def make(
    host: Host,
    setting: CopySetting,
    runs: Mapping[str, OffloadRun],
    log: Path,
    on_round: Callable[[], None],
) -> tuple[Made, ...]:
    """Make the kept store and load of each backend; every byte is checked.

    Args:
        host: The serving environment.
        setting: The memory of both sides.
        runs: What the managers gave, by backend.
        log: What the program writes.
        on_round: Called when one is done.

    Raises:
        ToolError: A transfer failed, or gave wrong bytes.
    """
    sides = _sides(runs)
    env = host.neutral_environment() | {"VLLM_LOGGING_LEVEL": "ERROR"}
    if host.on_cpu:
        env["TAGMA_HOST_OFFLOAD"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "copies.json"
        file.write_text(json.dumps(asdict(setting) | {"sides": sides}))
        run_watched(
            inside.command(host.python, "offload_copies", file),
            output=log,
            on_line=lambda line: on_round() if line == "round\n" else None,
            cwd=CHECKOUT,
            env=env,
        )
        rows = json.loads(file.read_text("utf-8"))
    return tuple(
        Made(side, kind, **_medians(rows, side, kind))
        for side in sides
        for kind in ("stores", "loads")
    )


def _sides(runs: Mapping[str, OffloadRun]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "merges": merges,
            **{kind: one.kept for kind, one in runs[backend].directions.items()},
        }
        for name, backend, merges in (
            (UNMERGED, PAGED, False),
            (MERGED, PAGED, True),
            (PLACED, TAGMA, True),
        )
    }


def _medians(rows: Sequence[Mapping[str, Any]], side: str, kind: str) -> dict[str, Any]:
    chosen = [row for row in rows if (row["side"], row["kind"]) == (side, kind)]
    return {name: median(row[name] for row in chosen) for name in _MEASURES}
