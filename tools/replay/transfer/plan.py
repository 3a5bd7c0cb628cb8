"""What the transfer benchmark runs: loads, pools and the agents' cases."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.replay.trace import Trace
from tools.replay.transfer import stream
from tools.replay.transfer.agents import LAYOUTS, Layout
from tools.replay.transfer.pools import PAGED, TAGMA, PoolRun, Run, Transfer
from tools.replay.transfer.stream import AGENTS, CONVERSATIONS, PROBES, Stream
from tools.replay.workload import WORKLOADS

SEEDS = 3
_QUICK_BLOCKS = 4096
_QUICK_PROBES = (512, 8192)


@dataclass(frozen=True)
class TransferPlan:
    """What the user chose.

    Args:
        trace: A recorded trace; None: only synthetic sessions.
        seeds: How many seeds to run these with.
        quick: Small pools, one workload, one layout.
    """

    trace: Path | None
    seeds: int
    quick: bool

    @property
    def num_blocks(self) -> int:
        """Blocks of each pool."""
        return _QUICK_BLOCKS if self.quick else stream.POOL_BLOCKS

    @property
    def probes(self) -> tuple[int, ...]:
        """Lengths of the probes, in tokens."""
        return _QUICK_PROBES if self.quick else PROBES

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """How the agents' pools lie in memory."""
        return (LAYOUTS[0], LAYOUTS[-1]) if self.quick else LAYOUTS

    def streams(self) -> Iterator[Stream]:
        """Yield all requests, a load at a time.

        Raises:
            ToolError: The trace is absent, or cannot be read.
        """
        trace = Trace.read(self.trace) if self.trace else None
        loads = (CONVERSATIONS, AGENTS) + (() if self.quick else WORKLOADS)
        for workload in loads:
            for seed in range(self.seeds):
                yield stream.of_sessions(workload, seed, self.num_blocks, self.probes)
        if trace:
            yield stream.of_trace(trace)


def kept(one: Stream) -> list[int]:
    """Return the numbers of the requests among which the agents' cases are chosen."""
    if one.seed:
        return []
    if one.name == CONVERSATIONS.name:
        return list(one.probes)
    if one.name == AGENTS.name:
        return list(range(one.warm_up, len(one.requests)))
    return []


def cases(runs: Sequence[PoolRun]) -> dict[str, dict[str, list[Run]]]:
    """Return what the agents move.

    For each length the probe of conversations that needs the median of descriptors,
    for each backend, and the largest transfer of an agent that is no longer.
    """
    first = {(one.stream.name, one.backend): one for one in reversed(runs)}
    probed = [first[CONVERSATIONS.name, backend] for backend in (PAGED, TAGMA)]
    found: dict[str, dict[str, list[Run]]] = {}
    for tokens in sorted(set(probed[0].stream.probes.values())):
        found[f"{tokens:,} tokens"] = {
            one.backend: one.kept[_median(one.probes(tokens)).number] for one in probed
        }
    agents = {backend: first[AGENTS.name, backend] for backend in (PAGED, TAGMA)}
    most = max(blocks(runs) for sides in found.values() for runs in sides.values())
    largest = max(
        (each for each in agents[PAGED].counted if each.blocks <= most),
        key=lambda transfer: transfer.blocks,
    )
    found[f"agent, {largest.blocks:,} blocks"] = {
        backend: run.kept[largest.number] for backend, run in agents.items()
    }
    return found


def blocks(runs: Sequence[Run]) -> int:
    """Return how many blocks runs have."""
    return sum(count for *_, count in runs)


def _median(transfers: Sequence[Transfer]) -> Transfer:
    ordered = sorted(transfers, key=lambda transfer: transfer.runs)
    return ordered[(len(ordered) - 1) // 2]
