"""The engine's benchmark on this host: compile, run, and show beside the goals.

Times are as measured, and a goal that is missed is shown, never an error: a busy
machine must not fail a build.
"""

import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from tools.base import console
from tools.base.process import run
from tools.base.project import Project
from tools.compile import cmake
from tools.compile.extension import load
from tools.measure import engine_goals
from tools.measure.engine_calls import time_calls
from tools.measure.engine_goals import EngineGoal
from tools.measure.engine_timings import ENGINE, PYTHON, EngineTiming, EngineTimings


class EngineBenchmark:
    """All timings of one run."""

    def __init__(self, timings: Sequence[EngineTiming], layout: dict[str, int]):
        self.timings = EngineTimings(timings)
        self.layout = layout

    def goals(self) -> tuple[EngineGoal, ...]:
        """Return the goals and how far each is reached."""
        return engine_goals.goals(self.timings)

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "layout": self.layout,
            "timings": [asdict(timing) for timing in self.timings.all],
            "goals": [
                {**asdict(goal), "verdict": goal.verdict} for goal in self.goals()
            ],
        }

    def tables(self) -> Iterator[Table]:
        """Yield the timings and the goals as tables."""
        yield self._timing_table()
        yield self._goal_table()

    def _timing_table(self) -> Table:
        table = Table("scenario", box=box.SIMPLE_HEAD)
        for name in ("live", "blocks"):
            table.add_column(name, justify="right")
        table.add_column("implementation")
        for name in ("mean, ns", "± ns", "fastest, ns", "tagma / this"):
            table.add_column(name, justify="right")
        for timing in self.timings.all:
            ratio = self.timings.ratio(
                timing.scenario, timing.live, timing.implementation
            )
            compared = timing.implementation not in (ENGINE, PYTHON)
            table.add_row(
                timing.scenario,
                str(timing.live) if timing.live else "",
                str(timing.blocks),
                timing.implementation,
                _number(timing.mean_ns),
                _number(timing.stddev_ns),
                _number(timing.fastest_ns),
                f"{ratio:.2f}" if compared and ratio is not None else "",
            )
        return table

    def _goal_table(self) -> Table:
        table = Table("goal", box=box.SIMPLE_HEAD)
        for name in ("measured", "at most"):
            table.add_column(name, justify="right")
        table.add_column("")
        for goal in self.goals():
            unit = f" {goal.unit}" if goal.unit else ""
            table.add_row(
                goal.name,
                "" if goal.value is None else f"{_number(goal.value)}{unit}",
                f"{goal.limit:g}{unit}",
                goal.verdict,
            )
        return table


def measure(project: Project, extension: Path, rounds: int) -> EngineBenchmark:
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
        called = time_calls(load(extension), rounds)
    timings = [EngineTiming(**fields) for fields in result["results"]]
    return EngineBenchmark([*timings, *called], result["layout"])


def _number(value: float) -> str:
    """Return a number with three significant digits."""
    digits = max(0, 3 - len(str(int(abs(value))))) if value >= 1 else 2
    return f"{value:,.{digits}f}"
