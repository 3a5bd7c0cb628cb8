"""The offloading benchmark: its goals, its tables, and what it says without a GPU."""

import json
from dataclasses import replace

import pytest
from checkout import Checkout

from tools.replay.offload import table
from tools.replay.offload.copies import MERGED, PLACED, UNMERGED, Made
from tools.replay.offload.plan import OffloadPlan
from tools.replay.offload.pools import Copied, OffloadRun
from tools.replay.offload.result import OffloadBenchmark
from tools.replay.transfer import stream
from tools.replay.transfer.pools import PAGED, TAGMA, PoolSetting, Transfer
from tools.replay.transfer.stream import AGENTS

STREAM = stream.of_sessions(AGENTS, 0, 1024, ())


def offload_run(backend: str, runs: int, **changes: int) -> OffloadRun:
    """Two transfers of 100 blocks each way, in so many runs."""
    copied = Copied((Transfer(0, 100, 1, runs, runs),) * 2, [(0, 0, 100)])
    values = {"hit_tokens": 500, "loaded_tokens": 1000, "preempted": 0} | changes
    return OffloadRun(
        backend, STREAM, num_chunks=1024, stores=copied, loads=copied, **values
    )


def bench(tagma: OffloadRun) -> OffloadBenchmark:
    made = tuple(
        Made(side, kind, 10, 1024, 0.1, 2.0)
        for side in (UNMERGED, MERGED, PLACED)
        for kind in ("stores", "loads")
    )
    runs = (offload_run(PAGED, 40), tagma)
    return OffloadBenchmark(runs, made, PoolSetting(1024))


def missed(made: OffloadBenchmark) -> list[str]:
    return [goal.measure for goal in made.goals() if not goal.is_met]


def test_a_tenth_of_the_runs_with_all_hits_meets_every_goal() -> None:
    assert missed(bench(offload_run(TAGMA, 4))) == []
    assert missed(bench(offload_run(TAGMA, 4, loaded_tokens=990))) == []


def test_fewer_hits_or_more_runs_miss_a_goal() -> None:
    fewer = offload_run(TAGMA, 4, loaded_tokens=989)
    assert missed(bench(fewer)) == ["hits in host memory, of upstream's"]
    more = bench(offload_run(TAGMA, 5))
    assert missed(more) == ["runs of all stores", "runs of all loads"]


def test_each_load_is_compared_with_itself() -> None:
    other = replace(offload_run(TAGMA, 40), num_chunks=2048)
    paged = replace(offload_run(PAGED, 400), num_chunks=2048)
    one = bench(offload_run(TAGMA, 4))
    both = replace(one, runs=(*one.runs, paged, other))
    assert missed(both) == []
    assert len(both.goals()) == 2 * len(one.goals())
    assert [str(made.title) for made in table.tables(both)] == [
        "runs a transfer: copies of a tensor, where neighbours are merged",
        "a transfer of about 500 blocks",
    ]
    data = json.loads(json.dumps(both.to_data()))
    assert [run["num_chunks"] for run in data["runs"]] == [1024, 1024, 2048, 2048]


@pytest.mark.parametrize("seeds", [1, 2])
def test_both_backends_get_the_same_requests_and_the_same_memory(seeds: int) -> None:
    tasks = list(OffloadPlan(None, seeds, quick=True).tasks())
    assert len(tasks) == 2 * 2 * 2 * seeds
    for paged, tagma in zip(tasks[::2], tasks[1::2], strict=True):
        assert paged[0] is tagma[0]
        assert paged[1] == tagma[1]
        assert (paged[2], tagma[2]) == (PAGED, TAGMA)
        assert not paged[0].probes


def test_without_a_gpu_it_says_so_and_is_no_failure(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = type("Host", (), {"on_cpu": True})()
    monkeypatch.setattr(
        "tools.commands.bench_offload.ensure_host", lambda project: host
    )
    text = checkout.tools("bench-offload", code=0).output
    assert "not run: no GPU; --dry copies between host tensors" in text
