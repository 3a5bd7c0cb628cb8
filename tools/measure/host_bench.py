"""The host benchmark of the KV cache manager: run, and compare with the goals.

A goal that is missed is shown, never an error: a busy machine must not fail a build.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.table import Table

from tools import inside
from tools.base import console
from tools.base.process import run_watched
from tools.base.project import CHECKOUT
from tools.serve.host import Host

PAGED, TAGMA, EITHER = "paged", "tagma", "either"
_SCENARIOS = 12  # the program prints a line after each

_STEP = "decode step of 512 requests"
_FULL = "caching on, every free block cached"


class Verdict(Enum):
    """How a number compares with its bounds."""

    AIM = "aim met"
    MUST = "must met"
    MISSED = "missed"


@dataclass(frozen=True)
class HostTiming:
    """One operation on one backend.

    Args:
        operation: What was timed.
        backend: "paged", "tagma", or "either" for what is no manager's work.
        rounds_ns: CPU time of the scheduler's thread in each round, in nanoseconds
            per operation.
    """

    operation: str
    backend: str
    rounds_ns: tuple[float, ...]

    @property
    def median_ns(self) -> float:
        """The median of the rounds."""
        return median(self.rounds_ns)


@dataclass(frozen=True)
class HostGoal:
    """Bounds on a ratio.

    Args:
        name: What the ratio is.
        value: The ratio.
        must: What it must not exceed.
        aim: What it should not exceed.
    """

    name: str
    value: float
    must: float
    aim: float

    @property
    def verdict(self) -> Verdict:
        """Which of the bounds is kept."""
        if self.value <= self.aim:
            return Verdict.AIM
        return Verdict.MUST if self.value <= self.must else Verdict.MISSED


# Bounds on tagma / paged: what must be, and what is aimed at.
_RATIOS = {
    f"{_STEP}, caching off": (0.35, 0.15),
    f"{_STEP}, caching on": (0.40, 0.20),
    "admit 128K tokens, caching off": (0.05, 0.01),
    "admit 1K tokens, caching off": (0.35, 0.15),
    f"admit 128K tokens, {_FULL}": (0.20, 0.10),
    "free 128K tokens, caching off": (0.03, 0.01),
    f"free 128K tokens, {_FULL}": (0.03, 0.01),
    "free 1K tokens, caching off": (0.30, 0.15),
    "prefix hit of 64K tokens": (0.15, 0.05),
}
_SHORT, _LONG = "admit 4K tokens, caching off", "admit 128K tokens, caching off"
_GROWTH = (8, 2)


class HostBenchmark:
    """All timings of one run.

    Args:
        timings: Every operation, on each backend.
        setting: The machine and the pool.
    """

    def __init__(self, timings: Sequence[HostTiming], setting: Mapping[str, Any]):
        self.timings = timings
        self.setting = setting
        self._medians = {(t.operation, t.backend): t.median_ns for t in timings}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "HostBenchmark":
        """Read what the measuring program wrote."""
        timings = [
            HostTiming(t["operation"], t["backend"], tuple(t["rounds_ns"]))
            for t in data["timings"]
        ]
        return cls(timings, {k: v for k, v in data.items() if k != "timings"})

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of all operations, as they were measured."""
        return tuple(dict.fromkeys(timing.operation for timing in self.timings))

    def ratio(self, operation: str) -> float | None:
        """Return tagma's median as a part of paged's; None: no manager's work."""
        tagma = self._medians.get((operation, TAGMA))
        paged = self._medians.get((operation, PAGED))
        return tagma / paged if tagma is not None and paged else None

    def goals(self) -> tuple[HostGoal, ...]:
        """Return the goals and how far each is reached.

        Raises:
            KeyError: An operation was not measured.
        """
        return tuple(self._goals())

    def _goals(self) -> Iterator[HostGoal]:
        for operation, (must, aim) in _RATIOS.items():
            medians = [self._medians[operation, side] for side in (TAGMA, PAGED)]
            yield HostGoal(
                f"{operation}: tagma / paged", medians[0] / medians[1], must, aim
            )
        growth = self._medians[_LONG, TAGMA] / self._medians[_SHORT, TAGMA]
        yield HostGoal(
            "admit 128K / admit 4K, caching off, one range: tagma", growth, *_GROWTH
        )

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            **self.setting,
            "timings": [
                {**asdict(timing), "median_ns": timing.median_ns}
                for timing in self.timings
            ],
            "goals": [
                {**asdict(goal), "verdict": goal.verdict.value} for goal in self.goals()
            ],
        }

    def tables(self) -> Iterator[Table]:
        """Return the timings and the goals as tables."""
        timings = Table("operation, µs", box=box.SIMPLE_HEAD)
        for name in (PAGED, TAGMA, "tagma / paged"):
            timings.add_column(name, justify="right")
        for operation in self.operations:
            ratio = self.ratio(operation)
            timings.add_row(
                operation,
                self._spread(operation, PAGED) or self._spread(operation, EITHER),
                self._spread(operation, TAGMA),
                "" if ratio is None else f"{ratio:.3f}",
            )
        timings.caption = (
            "CPU time of one thread: median (fastest to slowest round). Hashing is\n"
            "outside the manager: both backends pay it on top"
        )
        timings.caption_justify = "left"
        yield timings
        goals = Table("goal", box=box.SIMPLE_HEAD)
        for name in ("measured", "must", "aim"):
            goals.add_column(name, justify="right")
        goals.add_column("")
        for goal in self.goals():
            goals.add_row(
                goal.name,
                f"{goal.value:.3f}",
                f"{goal.must:g}",
                f"{goal.aim:g}",
                goal.verdict.value,
            )
        yield goals

    def _spread(self, operation: str, backend: str) -> str:
        for timing in self.timings:
            if (timing.operation, timing.backend) == (operation, backend):
                rounds = timing.rounds_ns
                middle, low, high = (
                    f"{ns / 1000:,.1f}"
                    for ns in (timing.median_ns, min(rounds), max(rounds))
                )
                return f"{middle} ({low} to {high})"
        return ""


def measure(host: Host, build: Path, rounds: int) -> HostBenchmark:
    """Run the benchmark in the serving environment.

    Args:
        host: The environment.
        build: The project's folder of generated files.
        rounds: How often each operation is timed on each backend.

    Raises:
        ToolError: The program failed.
    """
    file = build / "bench" / "host-rounds.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with console.step("time both managers", _SCENARIOS) as step:
        run_watched(
            inside.command(host.python, "measure_host", str(rounds), file),
            output=build / "logs" / "bench-host.log",
            on_line=lambda line: step.advance(line == "scenario\n"),
            cwd=CHECKOUT,
            env=host.neutral_environment() | {"VLLM_LOGGING_LEVEL": "ERROR"},
        )
    return HostBenchmark.from_data(json.loads(file.read_text("utf-8")))
