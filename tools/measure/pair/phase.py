"""What one phase of requests did on both sides of a pair."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tools.measure.greedy import Ask, Tokens, wrong_tokens
from tools.measure.pair.counters import Counters
from tools.measure.pair.records import Records, Transfer, mean


@dataclass(frozen=True)
class Side:
    """What one server did.

    Args:
        name: Which server.
        backend: What it runs.
        counters: What it counted meanwhile.
        records: What its probe recorded.
        held: The share of its pool that was still held when all had ended.
    """

    name: str
    backend: str
    counters: Counters
    records: Records
    held: float

    @property
    def problems(self) -> Iterator[str]:
        """What must not happen while all servers are up."""
        counts = {
            "transfers, handshakes or notifications failed": self.counters.failed,
            "requests expired before they were read": self.counters.expired,
            "notifications came after their request expired": self.counters.late,
        }
        for what, count in counts.items():
            if count:
                yield f"{self.name}: {count:.0f} {what}"
        if self.held:
            yield f"{self.name}: {self.held:.1%} of the blocks did not come back"

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "backend": self.backend,
            **asdict(self.counters),
            "held_after": self.held,
            "live_share": round(mean(self.records.held_shares), 4),
        }


@dataclass(frozen=True)
class Phase:
    """Requests, their answers, and what each server did for them."""

    name: str
    asks: tuple[Ask, ...]
    answers: tuple[Tokens, ...]
    sides: tuple[Side, ...]

    @property
    def counters(self) -> Counters:
        """The counts of all servers together."""
        return sum((side.counters for side in self.sides), Counters())

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All transfers; the side that posts one records it."""
        return tuple(t for side in self.sides for t in side.records.transfers)

    def problems(self, expected: Mapping[Ask, Tokens]) -> Iterator[str]:
        """Yield what is wrong.

        Args:
            expected: What a single server answered.
        """
        for problem in wrong_tokens(self.asks, self.answers, expected):
            yield f"{self.name}, {problem}"
        for side in self.sides:
            for problem in side.problems:
                yield f"{self.name}, {problem}"
        counted, recorded = self.counters.transfers, len(self.transfers)
        if not counted:
            yield f"{self.name}: nothing was transferred"
        if counted != recorded:
            yield (
                f"{self.name}: {recorded} transfers were posted, and the servers "
                f"count {counted:.0f}"
            )

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "requests": len(self.asks),
            "sides": {side.name: side.to_data() for side in self.sides},
            "transfers": [asdict(transfer) for transfer in self.transfers],
        }
