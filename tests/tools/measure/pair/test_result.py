"""The verdict on rounds as real pairs gave them, each broken in one way."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tools.base.outcome import Outcome
from tools.measure import observed
from tools.measure.greedy import Ask
from tools.measure.pair.connector import Connector, Role, Sites
from tools.measure.pair.counters import Counters, counters_of, recorded
from tools.measure.pair.phase import Phase, Side
from tools.measure.pair.records import Records
from tools.measure.pair.result import AGEING, PairResult, Round, Setting

ASK = Ask((5, 6, 7), 3)
EXPECTED = {ASK: (1, 2, 3)}
REGIONS = 3


def side(name: str, runs: int = 0, **counts: float) -> Side:
    """Return a side; one that posts has a transfer of so many runs."""
    lines = [{"released": [[4, 2]], "held_share": 0.5}]
    if runs:
        lines.append({"blocks": 40, "prefill": 1, "decode": runs, "both": runs})
        counts |= {"transfers": 1, "descriptors": REGIONS * runs}
    return Side(name, "tagma", Counters(**counts), Records(tuple(lines)), 0.0)


def phase(name: str, runs: int, *changed: Side) -> Phase:
    sides = {"prefill": side("prefill"), "decode": side("decode", runs)}
    sides |= {each.name: each for each in changed}
    return Phase(name, (ASK,), (EXPECTED[ASK],), tuple(sides.values()))


def problems(phase: Phase) -> list[str]:
    return list(phase.problems(EXPECTED))


def result(paged: int, tagma: int, ageing: int = 40) -> PairResult:
    rounds = [
        Round(Setting(name, name), (phase(AGEING, ageing), phase("load", runs)), ())
        for name, runs in (("paged", paged), ("tagma", tagma))
    ]
    return PairResult(tuple(rounds))


def test_right_tokens_and_ten_times_fewer_descriptors_are_done() -> None:
    assert problems(phase("load", 4)) == []
    good = result(10, 1)
    assert good.ratio == 10 and good.problems == ()
    assert good.outcome is Outcome.DONE


def test_less_than_ten_times_fewer_descriptors_is_different() -> None:
    bad = result(29, 3)
    assert bad.outcome is Outcome.DIFFERENT
    assert bad.problems == (
        "paged needs 9.7 times tagma's descriptors, less than 10 times",
    )


def test_transfers_of_the_ageing_do_not_count() -> None:
    assert result(10, 1, ageing=1).ratio == result(10, 1, ageing=40).ratio == 10


@pytest.mark.parametrize("answer", [(1, 2, 9), (1, 2), (1, 2, 3, 4)])
def test_one_other_token_is_a_problem_and_is_named(answer: tuple[int, ...]) -> None:
    (problem,) = problems(replace(phase("load", 4), answers=(answer,)))
    assert problem.startswith("load, request 1 of 3 tokens: token ")
    assert "a single server's is" in problem


@pytest.mark.parametrize("name", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("count", "words"),
    [
        ("failed", "2 transfers, handshakes or notifications failed"),
        ("expired", "2 requests expired before they were read"),
        ("late", "2 notifications came after their request expired"),
    ],
)
def test_what_fails_on_either_side_is_a_problem(
    name: str, count: str, words: str
) -> None:
    runs = 4 if name == "decode" else 0
    broken = phase("load", 4, side(name, runs, **{count: 2}))
    assert problems(broken) == [f"load, {name}: {words}"]


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_blocks_that_do_not_come_back_are_a_problem(name: str) -> None:
    held = replace(side(name, 4 if name == "decode" else 0), held=0.25)
    assert problems(phase("load", 4, held)) == [
        f"load, {name}: 25.0% of the blocks did not come back"
    ]


def test_a_phase_without_transfers_is_a_problem() -> None:
    assert problems(phase("load", 0)) == ["load: nothing was transferred"]


def test_a_transfer_that_was_posted_and_not_counted_is_a_problem() -> None:
    lost = side("decode", 4)
    lost = replace(lost, records=Records(lost.records.lines * 2))
    assert problems(phase("load", 4, lost)) == [
        "load: 2 transfers were posted, and the servers count 1"
    ]


def test_pools_that_did_not_age_are_a_problem() -> None:
    young = result(10, 1)
    tagma = replace(young.rounds[1], aged={"prefill": 0.9, "decode": 0.4})
    young = replace(young, rounds=(young.rounds[0], tagma))
    assert young.problems == (
        "tagma → tagma: only 40% of the blocks of decode were held 3 times",
    )


def test_problems_of_every_round_count() -> None:
    push = Round(Setting("tagma", "tagma", Connector.NIXL_PUSH), (), ("no",))
    found = replace(result(10, 1), rounds=(*result(10, 1).rounds, push))
    assert found.problems == ("tagma → tagma, push: no",)


def test_uses_of_blocks_are_counted_by_request() -> None:
    lines = ({"released": [[4, 2], [9, 1]]}, {"released": [[5, 1]]})
    assert Records(lines).uses() == {4: 1, 5: 2, 9: 1}


def test_a_request_that_only_makes_a_server_take_a_step_is_no_live_share() -> None:
    lines = (
        {"released": [[4, 2]], "held_share": 0.5},
        {"released": [[4, 1]], "held_share": 0.1},
    )
    assert Records(lines).held_shares == (0.5,)


def test_counters_are_read_from_the_text_of_metrics() -> None:
    text = """\
vllm:nixl_num_descriptors_bucket{engine="0",le="10.0"} 2.0
vllm:nixl_num_descriptors_count{engine="0",model_name="m"} 4.0
vllm:nixl_num_descriptors_sum{engine="0",model_name="m"} 12.0
vllm:nixl_num_failed_transfers_total{engine="0"} 1.0
vllm:nixl_num_kv_expired_reqs_total{engine="0"} 2.0
vllm:nixl_num_notifications_after_expiry_total{engine="0"} 3.0
vllm:external_prefix_cache_hits_total{engine="0"} 7.0
vllm:prefix_cache_hits_total{engine="0"} 96.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
"""
    counts = counters_of(text)
    assert counts == Counters(
        transfers=4, descriptors=12, failed=1, expired=2, late=3, prefix_hits=96
    )
    assert counts.each(counts.descriptors) == 3
    assert counts - counts == Counters()
    assert observed.held_share(text) == 0.25


def test_mooncake_sends_are_counted_from_what_the_probe_recorded() -> None:
    lines = [
        {"blocks": 4, "prefill": 1, "decode": 2, "both": 2},
        {"transfers": 1},
        {"descriptors": 6, "bytes": 4096, "transfer_s": 0.5},
        {"failed": 1},
        {"released": [[1, 4]], "held_share": 0.5},
    ]
    counted = recorded(lines)
    assert counted == Counters(
        transfers=1, descriptors=6, bytes=4096, transfer_s=0.5, failed=1
    )


def test_each_connector_gets_its_own_packages_and_settings(tmp_path: Path) -> None:
    sites = Sites(tmp_path / "transfer" / "site", tmp_path / "mooncake" / "site")
    for connector in Connector:
        is_mooncake = connector is Connector.MOONCAKE
        env = sites.environment(connector, "tcp", 7)
        site = sites.mooncake if is_mooncake else sites.nixl
        assert str(site) in env["PYTHONPATH"]
        assert ("VLLM_MOONCAKE_BOOTSTRAP_PORT" in env) == is_mooncake
        assert ("UCX_TLS" in env) != is_mooncake
        (argument,) = connector.arguments(Role.PREFILL)
        config = json.loads(argument.partition("=")[2])
        assert config["kv_connector"] == connector.value
        assert not connector.arguments(Role.ALONE)


def test_mooncake_gets_the_bundled_library_where_the_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = Sites(tmp_path / "transfer" / "site", tmp_path / "mooncake" / "site")
    bundled = sites.nixl / "nixl_cu12.libs" / "libibverbs-1d.so.1.14"
    for folder in (bundled.parent, sites.mooncake):
        folder.mkdir(parents=True)
    bundled.touch()
    find = "tools.measure.pair.connector.find_library"
    monkeypatch.setattr(find, lambda name: None)
    folder, libraries = sites.environment(Connector.MOONCAKE, "tcp", 7)[
        "LD_LIBRARY_PATH"
    ].split(os.pathsep)[:2]
    assert (Path(folder) / "libibverbs.so.1").resolve() == bundled
    assert Path(libraries) == bundled.parent
    monkeypatch.setattr(find, lambda name: "libibverbs.so.1")
    assert "LD_LIBRARY_PATH" not in sites.environment(Connector.MOONCAKE, "tcp", 7)
