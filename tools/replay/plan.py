"""What to replay: which policies, on which requests, in which pools."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.replay.case import Case, Synthetic, Traced
from tools.replay.trace import Trace
from tools.replay.workload import WORKLOADS

BLOCK_SIZES = (16, 32)
_SMALL_SHARES = (0.7, 0.9)
_ALL_SHARES = (0.5, 0.7, 0.9, 0.98)
PREFIX_CACHE = {"both": (False, True), "yes": (True,), "no": (False,)}


@dataclass(frozen=True)
class Plan:
    """What the user chose; an empty choice is the usual one.

    Args:
        traces: Recorded requests to replay instead of synthetic ones.
        requests: Leave a trace at that many; None: all.
        pool_tokens: Size of the pool for a trace; None: the usual one.
        full: Every live share and block size.
        workloads: The synthetic ones.
        prefix_cache: A key of `PREFIX_CACHE`.
        block_sizes: Tokens per block.
        shares: Parts of the pool for running requests.
        concurrency: Requests that run at once, on synthetic workloads.
        turnovers: How often these are replaced.
        seeds: How many seeds to run synthetic workloads with.
    """

    traces: tuple[Path, ...]
    requests: int | None
    pool_tokens: int | None
    full: bool
    workloads: tuple[str, ...]
    prefix_cache: str
    block_sizes: tuple[int, ...]
    shares: tuple[float, ...]
    concurrency: int
    turnovers: int
    seeds: int

    def cases(self, policies: Sequence[str]) -> list[Case]:
        """Return what to run, those to compare beside each other.

        Raises:
            ToolError: A trace is absent, or cannot be read.
        """
        return list(
            self._traced(policies) if self.traces else self._synthetic(policies)
        )

    def _pools(self) -> list[tuple[int, float]]:
        """Return block sizes and live shares."""
        sizes = self.block_sizes or (BLOCK_SIZES if self.full else BLOCK_SIZES[:1])
        shares = self.shares or (_ALL_SHARES if self.full else _SMALL_SHARES)
        return [(size, share) for size in sizes for share in shares]

    def _traced(self, policies: Sequence[str]) -> Iterator[Traced]:
        for trace in [Trace.read(path, self.requests) for path in self.traces]:
            tokens = self.pool_tokens or trace.pool_tokens
            for size, share in self._pools():
                for policy in policies:
                    yield Traced(trace, tokens, size, share, policy)

    def _synthetic(self, policies: Sequence[str]) -> Iterator[Synthetic]:
        chosen = [
            w for w in WORKLOADS if w.name in self.workloads or not self.workloads
        ]
        for cached in PREFIX_CACHE[self.prefix_cache]:
            for workload in chosen:
                for size, share in self._pools():
                    for policy in policies:
                        for seed in range(self.seeds):
                            yield Synthetic(
                                workload,
                                cached,
                                size,
                                share,
                                policy,
                                seed,
                                self.concurrency,
                                self.turnovers,
                            )
