"""The host benchmark of the engine: compile, run, and compare with the goals.

Times are as measured, and a goal that is missed is shown, never an error: a busy
machine must not fail a build.
"""

import importlib.util
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from statistics import mean, median, stdev
from time import perf_counter_ns
from typing import Any

from rich import box
from rich.table import Table

from tools.base import console
from tools.base.process import run
from tools.base.project import Project
from tools.compile import cmake

ENGINE = "tagma"
_MAP = "std::map"
_PYTHON = "Python"


@dataclass(frozen=True)
class Timing:
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


@dataclass(frozen=True)
class Goal:
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


class Benchmark:
    """All timings of one run."""

    def __init__(self, timings: Sequence[Timing], layout: dict[str, int]):
        self.timings = timings
        self.layout = layout
        self._fastest = {
            (timing.scenario, timing.live, timing.implementation): timing.fastest_ns
            for timing in timings
        }

    def ratio(self, scenario: str, live: int, other: str = _MAP) -> float | None:
        """Return the engine's time as a part of another implementation's."""
        own = self._fastest.get((scenario, live, ENGINE))
        others = self._fastest.get((scenario, live, other))
        return own / others if own is not None and others else None

    def goals(self) -> tuple[Goal, ...]:
        """Return the goals and how far each is reached."""
        return (*self._ratio_goals(), *self._growth_goals(), *self._time_goals())

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "layout": self.layout,
            "timings": [asdict(timing) for timing in self.timings],
            "goals": [
                {**asdict(goal), "verdict": goal.verdict} for goal in self.goals()
            ],
        }

    def tables(self) -> Iterator[Table]:
        """Return the timings and the goals as tables."""
        timings = Table("scenario", box=box.SIMPLE_HEAD)
        for name in ("live", "blocks"):
            timings.add_column(name, justify="right")
        timings.add_column("implementation")
        for name in ("mean, ns", "± ns", "fastest, ns", "tagma / this"):
            timings.add_column(name, justify="right")
        for timing in self.timings:
            ratio = self.ratio(timing.scenario, timing.live, timing.implementation)
            compared = timing.implementation not in (ENGINE, _PYTHON)
            timings.add_row(
                timing.scenario,
                str(timing.live) if timing.live else "",
                str(timing.blocks),
                timing.implementation,
                _number(timing.mean_ns),
                _number(timing.stddev_ns),
                _number(timing.fastest_ns),
                f"{ratio:.2f}" if compared and ratio is not None else "",
            )
        yield timings
        goals = Table("goal", box=box.SIMPLE_HEAD)
        for name in ("measured", "at most"):
            goals.add_column(name, justify="right")
        goals.add_column("")
        for goal in self.goals():
            unit = f" {goal.unit}" if goal.unit else ""
            goals.add_row(
                goal.name,
                "" if goal.value is None else f"{_number(goal.value)}{unit}",
                f"{goal.limit:g}{unit}",
                goal.verdict,
            )
        yield goals

    def _ratio_goals(self) -> Iterator[Goal]:
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
            yield Goal(f"{name}: tagma / {_MAP}", self.ratio(scenario, live), limit)

    def _growth_goals(self) -> Iterator[Goal]:
        for scenario in (
            "allocate+release",
            "grow in place",
            "prefix acquire+release",
            "evict cache-only",
        ):
            few = self._fastest.get((scenario, 512, ENGINE))
            many = self._fastest.get((scenario, 4096, ENGINE))
            value = many / few if many is not None and few else None
            yield Goal(f"{scenario}: 4,096 / 512 live", value, 2)

    def _time_goals(self) -> Iterator[Goal]:
        many = self._fastest.get(("allocate+release of 256 ranges", 4096, ENGINE))
        value = None if many is None else many / 1000
        yield Goal("allocate+release of 256 ranges", value, 20, "µs")
        for scenario in _PYTHON_CALLS:
            called = self._fastest.get((scenario, 0, _PYTHON))
            own = self._fastest.get((scenario, 0, ENGINE))
            calls = _PYTHON_CALLS[scenario]
            over = None if called is None or own is None else (called - own) / calls
            yield Goal(f"{scenario}: a call from Python over C++", over, 80, "ns")


def measure(project: Project, extension: Path, rounds: int) -> Benchmark:
    """Run the benchmark.

    Args:
        project: The project.
        extension: The compiled extension, for the calls from Python.
        rounds: How often each implementation is timed.

    Raises:
        ToolError: A tool is missing, or the benchmark does not compile or finds
            wrong results.
    """
    program = cmake.build(project, "bench") / "bench_kv_engine"
    with console.step("measure in C++"):
        result = json.loads(run([program, str(rounds)]).stdout)
    with console.step("measure calls from Python"):
        called = _time_python(load_extension(extension), rounds)
    timings = [Timing(**fields) for fields in result["results"]]
    return Benchmark([*timings, *called], result["layout"])


def load_extension(path: Path) -> Any:
    """Load the compiled extension by itself, without the package vllm."""
    spec = importlib.util.spec_from_file_location("tagma", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# How many calls into the extension one call of a scenario makes.
_PYTHON_CALLS = {"read a block's references": 1, "allocate+release": 2}
_BLOCKS = 1 << 16  # as in the C++ program


def _time_python(tagma: Any, rounds: int) -> list[Timing]:
    """Time the same calls from Python, the loop included."""
    pool = tagma.KVAllocator(_BLOCKS)
    request = pool.new_ranges()
    pool.extend(request, 64)
    pool.release(request)
    count_references, extend, release = pool.ref_count, pool.extend, pool.release

    def read(calls: int) -> None:
        for _ in repeat(None, calls):
            count_references(7)

    def extend_and_release(calls: int) -> None:
        for _ in repeat(None, calls):
            extend(request, 64)
            release(request)

    def nothing(calls: int) -> None:
        for _ in repeat(None, calls):
            pass

    return [
        _time("read a block's references", 1, rounds, read),
        _time("allocate+release", 64, rounds, extend_and_release),
        _time("empty loop", 0, rounds, nothing),
    ]


def _time(
    scenario: str, blocks: int, rounds: int, body: Callable[[int], None]
) -> Timing:
    calls = 5_000
    samples = []
    for _ in range(rounds):
        body(1)
        begin = perf_counter_ns()
        body(calls)
        samples.append((perf_counter_ns() - begin) / calls)
    return Timing(
        scenario,
        0,
        blocks,
        _PYTHON,
        calls,
        rounds,
        mean(samples),
        stdev(samples),
        median(samples),
        min(samples),
    )


def _number(value: float) -> str:
    """Return a number with three significant digits."""
    digits = max(0, 3 - len(str(int(abs(value))))) if value >= 1 else 2
    return f"{value:,.{digits}f}"
