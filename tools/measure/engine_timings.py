"""What the engine's benchmark timed, of the engine and of its yardsticks."""

from collections.abc import Sequence
from dataclasses import dataclass

ENGINE = "tagma"
MAP = "std::map"
PYTHON = "Python"


@dataclass(frozen=True)
class EngineTiming:
    """One implementation of a scenario, in nanoseconds per call.

    Args:
        scenario: What a call does.
        live: How many requests are live meanwhile.
        blocks: How many blocks a call handles.
        implementation: Who does it.
        calls: Calls in a round.
        rounds: Rounds, each after one call that is not timed.
        mean_ns: Mean of the rounds.
        stddev_ns: Their standard deviation.
        median_ns: Their median.
        fastest_ns: The fastest round. A busy machine only ever adds time, so this
            is what ratios are made of.
    """

    scenario: str
    live: int
    blocks: int
    implementation: str
    calls: int
    rounds: int
    mean_ns: float
    stddev_ns: float
    median_ns: float
    fastest_ns: float


class EngineTimings:
    """All timings of one run, compared by their fastest rounds."""

    def __init__(self, timings: Sequence[EngineTiming]):
        self.all = timings
        self._fastest = {
            (timing.scenario, timing.live, timing.implementation): timing.fastest_ns
            for timing in timings
        }

    def fastest(
        self, scenario: str, live: int, implementation: str = ENGINE
    ) -> float | None:
        """Return the fastest round in nanoseconds per call; None: not measured."""
        return self._fastest.get((scenario, live, implementation))

    def ratio(self, scenario: str, live: int, other: str = MAP) -> float | None:
        """Return the engine's time as a part of another implementation's."""
        own = self.fastest(scenario, live)
        others = self.fastest(scenario, live, other)
        return own / others if own is not None and others else None
