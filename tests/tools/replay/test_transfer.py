"""The transfer benchmark: its requests, its goals and what its agents are given."""

import json
from dataclasses import replace

import pytest

from tools.replay.trace import Trace
from tools.replay.transfer import plan, plot, stream, table
from tools.replay.transfer.agents import ONE_RUN, Moved
from tools.replay.transfer.pools import (
    PAGED,
    TAGMA,
    PoolRun,
    PoolSetting,
    Side,
    Transfer,
)
from tools.replay.transfer.result import Load, TransferBenchmark
from tools.replay.transfer.stream import AGENTS, BLOCK_SIZE, CONVERSATIONS, PROBES

BLOCKS = 4096
SETTING = PoolSetting(BLOCKS)
SIDE = Side(hit_tokens=100, moved_blocks=3, thread_seconds=0.1, free_blocks=BLOCKS)


def pool_run(backend: str, workload=CONVERSATIONS, runs: int = 1) -> PoolRun:
    """A run in which every request is transferred in so many runs."""
    requests = stream.of_sessions(workload, 0, BLOCKS, (512, 8192))
    transfers = tuple(
        Transfer(number, -(-request.prompt_tokens // BLOCK_SIZE), 1, runs, runs)
        for number, request in enumerate(requests.requests)
    )
    kept = {
        each.number: [(index, 0, 1) for index in range(each.blocks)]
        for each in transfers
    }
    return PoolRun(backend, requests, BLOCKS, transfers, kept, 0, SIDE, SIDE)


def bench(
    paged: PoolRun | None = None, tagma: PoolRun | None = None, moved: tuple = ()
) -> TransferBenchmark:
    paged, tagma = paged or pool_run(PAGED, runs=9), tagma or pool_run(TAGMA)
    load = Load(tagma.stream.name, (paged,), (tagma,))
    return TransferBenchmark((load,), moved, SETTING)


def missed(made: TransferBenchmark) -> list[str]:
    return [goal.measure for goal in made.goals() if not goal.is_met]


def test_requests_of_a_seed_are_always_the_same_and_another_seeds_differ() -> None:
    first, again, other = (
        stream.of_sessions(AGENTS, seed, BLOCKS).to_data() for seed in (0, 0, 1)
    )
    assert first == again != other
    assert json.loads(json.dumps(first))[0][0] == first[0][0]


@pytest.mark.parametrize("workload", [CONVERSATIONS, AGENTS], ids=lambda w: w.name)
def test_a_prompt_begins_with_what_earlier_ones_had_and_a_probe_does_not(
    workload,
) -> None:
    made = stream.of_sessions(workload, 0, stream.POOL_BLOCKS)
    seen: set[int] = set()
    found = 0
    for number, request in enumerate(made.requests):
        blocks = request.prompt_tokens // BLOCK_SIZE
        old = sum(content in seen for content in request.hashes[:blocks])
        assert not (number in made.probes and old)
        assert old == blocks or request.hashes[old] not in seen  # a prefix, no hole
        found += old
        seen.update(request.hashes)
    assert found > len(seen) / 4
    lengths = list(made.probes.values())
    assert {lengths.count(tokens) >= 8 for tokens in PROBES} == {True}
    assert min(made.probes) >= made.warm_up


def test_a_trace_is_replayed_whole() -> None:
    trace = Trace("two", ((1024, 5, (1, 2)), (512, 7, (1,))))
    made = stream.of_trace(trace)
    assert made.to_data() == [
        [1024, 5, [(32, 64)]],
        [512, 7, [(32, 32)]],
    ]


def test_few_runs_with_equal_decisions_meet_every_goal() -> None:
    assert missed(bench()) == []


@pytest.mark.parametrize(
    ("changes", "measure"),
    [
        ({"preempted": 1}, "preemptions, equal to paged's"),
        (
            {"decode": replace(SIDE, hit_tokens=99)},
            "hits of the decode side, equal to paged's",
        ),
        (
            {"prefill": replace(SIDE, free_blocks=BLOCKS - 1)},
            "blocks that did not come back",
        ),
    ],
)
def test_a_decision_that_is_not_pageds_misses_a_goal(changes, measure: str) -> None:
    assert missed(bench(tagma=replace(pool_run(TAGMA), **changes))) == [measure]


def test_more_runs_than_the_goal_for_a_length_miss_it() -> None:
    made = bench(tagma=pool_run(TAGMA, runs=3))
    assert missed(made) == ["runs of 512 tokens"]
    made = bench(tagma=pool_run(TAGMA, runs=4))
    assert missed(made) == ["runs of 512 tokens", "runs of 8,192 tokens"]


def test_a_trace_has_a_goal_for_its_worst_transfers() -> None:
    def run(backend: str, worst: int) -> PoolRun:
        requests = stream.of_trace(Trace("t", ((1024, 5, ()),) * 60))
        transfers = tuple(
            Transfer(n, 64, 1, 1, worst if n > 57 else 1) for n in range(60)
        )
        return PoolRun(backend, requests, BLOCKS, transfers, {}, 0, SIDE, SIDE)

    assert missed(bench(run(PAGED, 60), run(TAGMA, 16))) == []
    assert missed(bench(run(PAGED, 60), run(TAGMA, 17))) == ["runs, p99"]


def test_agents_get_the_same_blocks_of_both_backends() -> None:
    runs = [
        pool_run(backend, workload)
        for workload in (CONVERSATIONS, AGENTS)
        for backend in (PAGED, TAGMA)
    ]
    cases = plan.cases(runs)
    assert list(cases)[:2] == ["512 tokens", "8,192 tokens"]
    assert list(cases)[2].startswith("agent, ")
    for sides in cases.values():
        blocks = {
            backend: sum(count for *_, count in listed)
            for backend, listed in sides.items()
        }
        assert blocks[PAGED] == blocks[TAGMA] > 0


def moved(side: str, runs: int, descriptors: int, cpu_ms: float) -> Moved:
    return Moved("a", 32, "512 tokens", side, runs, descriptors, 1024, 0.1, cpu_ms, 9.0)


def test_descriptors_that_nixl_does_not_make_as_counted_miss_a_goal() -> None:
    good = (
        moved(PAGED, 30, 960, 11.0),
        moved(TAGMA, 1, 32, 2.0),
        moved(ONE_RUN, 1, 32, 1.0),
    )
    assert missed(bench(moved=good)) == []
    bad = (good[0], replace(good[1], descriptors=33), good[2])
    assert missed(bench(moved=bad)) == ["NIXL's descriptors, tagma"]
    shares = bench(moved=good).cpu_shares(good[1])
    assert shares == {
        "cpu_of_paged": pytest.approx(2 / 11),
        "cpu_of_paged_above_one_run": pytest.approx(0.1),
    }


def test_everything_is_shown(tmp_path) -> None:
    made = bench(tagma=pool_run(TAGMA, runs=3), moved=(moved(PAGED, 30, 960, 11.0),))
    titles = [str(each.title) for each in table.tables(made)]
    assert len(titles) == 3
    assert titles[-1] == "missed goals"
    data = json.loads(json.dumps(made.to_data()))
    assert [load["backend"] for load in data["loads"]] == [PAGED, TAGMA]
    assert data["loads"][1]["seeds"][0]["transfers"]["512 tokens"]["runs_mean"] == 3
    plot.draw(made, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
