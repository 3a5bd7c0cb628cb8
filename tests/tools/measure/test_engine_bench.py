"""The engine's benchmark: the real programs, and how goals are judged."""

import json
import subprocess
import sysconfig

import pytest
from checkout import REPOSITORY

from tools.base.project import Project
from tools.measure import engine_bench
from tools.measure.engine_bench import Benchmark, Timing

LAYOUT = {
    "layers": 32,
    "blocks": 65536,
    "tokens_per_block": 32,
    "bytes_per_token": 2048,
}


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """A short run of what is in csrc_tagma/."""
    folder = tmp_path_factory.mktemp("bench")
    extension = folder / "tagma.abi3.so"
    subprocess.run(
        [
            *("c++", "-std=c++17", "-O0", "-shared", "-fPIC"),
            *("-DPy_LIMITED_API=0x030B0000", f"-I{sysconfig.get_path('include')}"),
            *(REPOSITORY / "csrc_tagma" / "tagma_bindings.cpp", "-o", extension),
        ],
        check=True,
    )
    project = Project(REPOSITORY, folder / "build", folder)
    return engine_bench.measure(project, extension, rounds=2)


def timing(scenario: str, live: int, implementation: str, ns: float) -> Timing:
    return Timing(scenario, live, 1, implementation, 10, 2, ns + 2, 1.0, ns + 1, ns)


def test_every_goal_is_measured(benchmark):
    verdicts = {goal.name: goal.verdict for goal in benchmark.goals()}
    assert set(verdicts.values()) <= {"met", "missed"}, verdicts
    assert len(verdicts) == len(benchmark.goals())


def test_the_layout_is_that_of_the_reference_run(benchmark):
    assert benchmark.layout == LAYOUT


def test_all_yardsticks_are_in_the_same_run(benchmark):
    names = {timing.implementation for timing in benchmark.timings}
    assert names == {
        "tagma",
        "std::map",
        "std::unordered_map",
        "malloc",
        "paged gather",
        "Python",
    }
    assert all(
        t.mean_ns >= t.fastest_ns > 0 and t.stddev_ns >= 0 for t in benchmark.timings
    )


def test_the_values_survive_json(benchmark):
    data = json.loads(json.dumps(benchmark.to_data()))
    assert [Timing(**fields) for fields in data["timings"]] == benchmark.timings


def test_a_goal_compares_the_fastest_rounds_of_the_same_scenario():
    measured = Benchmark(
        [
            timing("allocate+release", 0, "tagma", 60.0),
            timing("allocate+release", 0, "std::map", 100.0),
            timing("allocate+release", 512, "tagma", 40.0),
            timing("allocate+release", 512, "std::map", 100.0),
            timing("allocate+release", 4096, "tagma", 80.1),
        ],
        LAYOUT,
    )
    goals = {goal.name: goal for goal in measured.goals()}
    alone = goals["allocate+release, alone: tagma / std::map"]
    assert (alone.value, alone.verdict) == (0.6, "met")
    live = goals["allocate+release, 512 live: tagma / std::map"]
    assert (live.value, live.verdict) == (0.4, "missed")
    assert goals["allocate+release: 4,096 / 512 live"].verdict == "missed"
    assert goals["grow in place, alone: tagma / std::map"].verdict == "not measured"


def test_what_a_call_from_python_costs_is_per_call():
    measured = Benchmark(
        [
            timing("allocate+release", 0, "tagma", 40.0),
            timing("allocate+release", 0, "Python", 200.0),
        ],
        LAYOUT,
    )
    over = {goal.name: goal.value for goal in measured.goals()}
    assert over["allocate+release: a call from Python over C++"] == 80.0


def test_wrong_rounds_are_a_usage_error(checkout):
    done = checkout.cli("bench-engine", "--rounds", "1")
    assert done.returncode == 2
    assert "--rounds" in done.stderr
