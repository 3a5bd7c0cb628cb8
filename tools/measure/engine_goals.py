"""The bounds on what the engine's benchmark measures."""

from collections.abc import Iterator
from dataclasses import dataclass

from tools.measure.engine_calls import CALLS
from tools.measure.engine_timings import MAP, PYTHON, EngineTimings


@dataclass(frozen=True)
class EngineGoal:
    """A bound on a number that the timings give.

    Args:
        name: What the number is.
        value: The number; None: it was not measured.
        limit: The bound.
        unit: Its unit; empty for a ratio.
    """

    name: str
    value: float | None
    limit: float
    unit: str = ""

    @property
    def verdict(self) -> str:
        """Whether the bound is kept."""
        if self.value is None:
            return "not measured"
        return "met" if self.value <= self.limit else "missed"


def goals(timings: EngineTimings) -> tuple[EngineGoal, ...]:
    """Return the goals and how far each is reached."""
    return (
        *_ratio_goals(timings),
        *_growth_goals(timings),
        *_time_goals(timings),
    )


def _ratio_goals(timings: EngineTimings) -> Iterator[EngineGoal]:
    for scenario, live, limit in (
        ("grow in place", 0, 0.1),
        ("grow in place", 512, 0.1),
        ("grow in place", 4096, 0.1),
        ("allocate+release", 0, 0.6),
        ("allocate+release", 512, 0.3),
        ("prefix acquire+release", 0, 0.1),
        ("prefix acquire+release", 512, 0.1),
        ("prefix acquire+release", 4096, 0.1),
        ("evict cache-only", 0, 0.6),
        ("evict cache-only", 512, 0.6),
        ("evict cache-only", 4096, 0.6),
    ):
        name = f"{scenario}, {live} live" if live else f"{scenario}, alone"
        yield EngineGoal(f"{name}: tagma / {MAP}", timings.ratio(scenario, live), limit)


def _growth_goals(timings: EngineTimings) -> Iterator[EngineGoal]:
    for scenario in (
        "allocate+release",
        "grow in place",
        "prefix acquire+release",
        "evict cache-only",
    ):
        few = timings.fastest(scenario, 512)
        many = timings.fastest(scenario, 4096)
        value = many / few if many is not None and few else None
        yield EngineGoal(f"{scenario}: 4,096 / 512 live", value, 2)


def _time_goals(timings: EngineTimings) -> Iterator[EngineGoal]:
    many = timings.fastest("allocate+release of 256 ranges", 4096)
    value = None if many is None else many / 1000
    yield EngineGoal("allocate+release of 256 ranges", value, 20, "µs")
    for scenario in CALLS:
        called = timings.fastest(scenario, 0, PYTHON)
        own = timings.fastest(scenario, 0)
        calls = CALLS[scenario]
        over = None if called is None or own is None else (called - own) / calls
        yield EngineGoal(f"{scenario}: a call from Python over C++", over, 80, "ns")
