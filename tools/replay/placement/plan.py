"""What the placement benchmark runs: policies, workloads and a trace."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from tools.replay.case import Case, Conditions, Synthetic, Traced
from tools.replay.tagma import Engine
from tools.replay.trace import Trace
from tools.replay.workload import WORKLOADS

PAGED, UNBOUND, DEFAULT, OFF = "paged", "no bound", "default bound", "moving off"
# What an admission may copy, as `Engine` takes it.
BOUNDS: dict[str, float | None] = {
    UNBOUND: math.inf,
    DEFAULT: None,
    "bound 1,024": 1024,
    "bound 2,048": 2048,
    "bound 4,096": 4096,
    OFF: 0,
}
POLICIES = (PAGED, *BOUNDS)
SEEDS = 5
# The trace that the goals are for; its first requests at several live shares.
QUICK = "chat, few at once"
MOONCAKE, WHOLE = "mooncake_conversation", "mooncake_conversation, whole"
_FIRST_REQUESTS = 2500
_BLOCK_SIZE = 16
_SESSION_SHARES = (0.7, 0.9, 0.98)
_TRACE_SHARES = (0.5, 0.7, 0.9)
_WHOLE_SHARE = 0.7
_CONCURRENCY, _TURNOVERS = 32, 6
_QUICK_CONCURRENCY, _QUICK_TURNOVERS = 8, 40


@dataclass(frozen=True)
class BenchPlan:
    """What the user chose.

    Args:
        trace: A recorded trace; None: only synthetic sessions.
        seeds: How many seeds to run these with.
        quick: Only a few hundred requests of one workload.
    """

    trace: Path | None
    seeds: int
    quick: bool

    def cases(self) -> list[Case]:
        """Return what to run, the policies on the same requests beside each other.

        Raises:
            ToolError: The trace is absent, or cannot be read.
        """
        cases: list[Case] = list(self._sessions())
        if self.trace is not None:
            cases += self._traced(Trace.read(self.trace))
        return cases

    def not_run(self) -> tuple[Conditions, ...]:
        """Return what would run if there was a trace."""
        if self.trace is not None:
            return ()
        loads = [*((MOONCAKE, share) for share in _TRACE_SHARES), (WHOLE, _WHOLE_SHARE)]
        return tuple(
            Conditions(name, True, _BLOCK_SIZE, share) for name, share in loads
        )

    def _sessions(self) -> Iterator[Case]:
        loads = list(product(WORKLOADS, _SESSION_SHARES))
        concurrency, turnovers = _CONCURRENCY, _TURNOVERS
        if self.quick:
            # By another name: the goals for ranges are for more requests at once.
            loads = [(replace(WORKLOADS[0], name=QUICK), _SESSION_SHARES[0])]
            concurrency, turnovers = _QUICK_CONCURRENCY, _QUICK_TURNOVERS

        for (workload, share), policy, seed in product(
            loads, POLICIES, range(self.seeds)
        ):
            yield Synthetic(
                workload, True, _BLOCK_SIZE, share, policy, seed, concurrency, turnovers
            )

    def _traced(self, whole: Trace) -> Iterator[Case]:
        first = Trace(whole.name, whole.records[:_FIRST_REQUESTS])
        loads = [(first, share) for share in _TRACE_SHARES]
        if len(whole.records) > _FIRST_REQUESTS:
            loads.append((replace(whole, name=f"{whole.name}, whole"), _WHOLE_SHARE))
        for (trace, share), policy in product(loads, POLICIES):
            yield Traced(trace, trace.pool_tokens, _BLOCK_SIZE, share, policy)


def engines(file: Path) -> Mapping[str, Engine]:
    """Return the engine under each bound, by the policies' names."""
    return {name: Engine(file, bound) for name, bound in BOUNDS.items()}
