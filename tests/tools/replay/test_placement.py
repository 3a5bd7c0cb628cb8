"""The placement benchmark: its goals, its exit code, and the real engine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkout import Checkout
from traces import MOONCAKE

from tools.replay.case import Conditions
from tools.replay.case_result import CaseResult
from tools.replay.comparison import PolicyComparison
from tools.replay.placement import goal
from tools.replay.placement.bench import PlacementBenchmark
from tools.replay.placement.goal import Goal, goals
from tools.replay.placement.plan import (
    BOUNDS,
    DEFAULT,
    OFF,
    PAGED,
    POLICIES,
    UNBOUND,
    BenchPlan,
)
from tools.replay.placement.price import MODELS

RESULT = CaseResult(
    seed=0, num_blocks=1000, live_share=0.7, runs_mean=1.5, runs_p50=1, runs_p99=4,
    runs_max=5, live_runs_mean=1.5, live_runs_p99=4, hit_tokens=800, prompt_tokens=1000,
    hit_share=0.8, evicted_blocks=70, removed="ab", copies_per_block=2.2,
    step_copies_mean=19.0, step_copies_p99=560, step_copies_max=2400,
    over_cap_requests=0, preemptions=1, admissions=99, seconds=0.1,
)  # fmt: skip
STILL = {"copies_per_block": 0.0, "step_copies_max": 0}


def chat(**changes: dict[str, Any]) -> PolicyComparison:
    """Five seeds of chat at 70 %, with what the simulation has; `changes` by policy."""
    changes = {OFF: STILL, PAGED: STILL} | changes
    return PolicyComparison(
        Conditions("chat", True, 16, 0.7),
        {
            policy: tuple(
                replace(RESULT, seed=seed, **changes.get(policy, {}))
                for seed in range(5)
            )
            for policy in POLICIES
        },
    )


def missed(comparison: PolicyComparison) -> list[Goal]:
    return [goal for goal in goals([comparison]) if not goal.is_met]


def test_what_was_simulated_meets_every_goal() -> None:
    assert missed(chat()) == []
    # Means are compared as they were noted: 1.544 is 1.54.
    assert missed(chat(**{UNBOUND: {"runs_mean": 1.544}})) == []


@pytest.mark.parametrize(
    ("policy", "change", "measure"),
    [
        (UNBOUND, {"runs_mean": 1.546}, "ranges, mean"),
        (UNBOUND, {"runs_p99": 5}, "ranges, p99"),
        (DEFAULT, {"runs_mean": 1.56}, "ranges, mean"),
        (DEFAULT, {"runs_p99": 5}, "ranges, p99"),
        (DEFAULT, {"step_copies_max": 4601}, "copies of the worst step"),
        (UNBOUND, {"copies_per_block": 2.51}, "copies a block"),
        (DEFAULT, {"copies_per_block": 2.51}, "copies a block"),
        (OFF, {"copies_per_block": 0.01}, "copies a block"),
        *((policy, {"hit_tokens": 799}, "prefix hits") for policy in BOUNDS),
        *((policy, {"hit_tokens": 801}, "prefix hits") for policy in BOUNDS),
        *((policy, {"preemptions": 2}, "preemptions") for policy in BOUNDS),
        *((policy, {"removed": "ba"}, "removed hashes") for policy in BOUNDS),
    ],
)
def test_a_count_beyond_its_goal_is_the_one_that_is_missed(
    policy: str, change: dict[str, Any], measure: str
) -> None:
    changed = (STILL if policy == OFF else {}) | change
    (found,) = missed(chat(**{policy: changed}))
    assert found.policy == policy
    assert found.measure.startswith(measure)


def test_one_seed_is_enough_to_differ_from_paged() -> None:
    """Sums over the seeds may be equal all the same."""
    comparison = chat()
    first, second, *others = comparison.runs[DEFAULT]
    runs = (
        replace(first, hit_tokens=799), replace(second, hit_tokens=801), *others,
    )  # fmt: skip
    (found,) = missed(replace(comparison, runs={**comparison.runs, DEFAULT: runs}))
    assert (found.value, found.limit) == (4000, 4000)


def test_bounded_ranges_are_judged_by_the_seeds_they_were_simulated_with() -> None:
    comparison = chat()
    *three, fourth, fifth = comparison.runs[DEFAULT]
    runs = (*three, replace(fourth, runs_mean=99), fifth)
    assert missed(replace(comparison, runs={**comparison.runs, DEFAULT: runs})) == []


def test_a_load_that_was_not_simulated_has_no_goal_for_ranges() -> None:
    other = replace(
        chat(**{UNBOUND: {"runs_mean": 99}}), conditions=Conditions("x", True, 16, 0.7)
    )
    assert missed(other) == []


def test_without_a_trace_its_rows_say_so_and_count_as_no_goal() -> None:
    plan = BenchPlan(None, seeds=5, quick=False)
    assert [load.live_share for load in plan.not_run()] == [0.5, 0.7, 0.9, 0.7]
    without = PlacementBenchmark([chat()], plan.not_run())
    assert without.goals() == PlacementBenchmark([chat()], ()).goals()
    cells = list(next(without.tables()).columns[1].cells)
    assert cells[-4:] == ["not run: no TRACE"] * 4
    assert without.to_data()["not_run"][3]["workload"].endswith("whole")


def test_a_copy_is_priced_by_its_bytes() -> None:
    small, large = MODELS
    assert (small.block_bytes, large.block_bytes) == (2 << 20, 5 << 18)
    # 2 MiB are read and written at 2.345 TB/s.
    assert small.microseconds(1) == pytest.approx(1.789, abs=0.001)


def test_the_command_compares_the_engine_with_paged(
    checkout: Checkout, engine: Path
) -> None:
    trace = checkout.project.root / "mooncake.jsonl"
    trace.write_text(MOONCAKE)
    done = checkout.cli(
        "bench-placement", "--quick", "--json", f"--engine={engine}", f"--trace={trace}"
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    file = checkout.project.build / "bench" / "placement.json"
    assert json.loads(file.read_text()) == data
    assert data["not_run"] == []
    chat, *traced = data["comparisons"]
    assert [load["live_share"] for load in traced] == [0.5, 0.7, 0.9]
    runs = {row["policy"]: row["runs"][0] for row in chat["policies"]}
    assert tuple(runs) == POLICIES
    for run in runs.values():
        for measure in ("hit_tokens", "preemptions", "removed"):
            assert run[measure] == runs[PAGED][measure]
    assert runs[PAGED]["evicted_blocks"] > 1000
    assert runs[OFF]["copies_per_block"] == 0 < runs[DEFAULT]["copies_per_block"]
    assert runs[UNBOUND]["runs_mean"] * 10 < runs[PAGED]["runs_mean"]
    assert runs[DEFAULT]["runs_mean"] * 10 < runs[OFF]["runs_mean"]
    worst = runs["bound 1,024"]["step_copies_max"]
    assert worst < runs[UNBOUND]["step_copies_max"]


def test_a_missed_goal_decides_the_exit_code(
    checkout: Checkout, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goal, "_MOST_STEP_COPIES", 0)
    done = checkout.tools("bench-placement", "--quick", f"--engine={engine}", code=1)
    assert "copies of the worst step" in done.output
    assert "21 of 22 goals met" in done.output
    assert done.output.count("not run: no TRACE") == 4
