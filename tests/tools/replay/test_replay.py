"""The command: what it compares, prints and refuses."""

import json
import shutil
from pathlib import Path

import pytest
from checkout import REPOSITORY, Checkout
from traces import AZURE, MOONCAKE

from tools.replay.experiment import BASELINES

POLICIES = (*BASELINES, "tagma")


def test_the_command_reports_every_measure(checkout: Checkout, engine: Path) -> None:
    done = checkout.cli(
        "replay", "--json", f"--engine={engine}", "--workload=chat", "--seeds=2",
        "--concurrency=4", "--turnovers=2", "--prefix-cache=yes", "--live-share=0.7",
        "--policy=paged", "--policy=tagma", "--plot",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    bench = checkout.project.build / "bench"
    assert json.loads((bench / "replay.json").read_text()) == data
    assert (bench / "replay.png").read_bytes().startswith(b"\x89PNG")
    (comparison,) = data["comparisons"]
    assert comparison["workload"] == "chat"
    assert (comparison["block_size"], comparison["live_share"]) == (16, 0.7)
    assert [row["policy"] for row in comparison["policies"]] == ["paged", "tagma"]
    for row in comparison["policies"]:
        assert [one["seed"] for one in row["runs"]] == [0, 1]
        for measure in (
            "runs_mean", "runs_p50", "runs_p99", "hit_tokens", "evicted_blocks",
            "over_cap_requests", "preemptions", "admissions",
        ):  # fmt: skip
            values = [one[measure] for one in row["runs"]]
            assert row[measure]["least"] == min(values)
            assert row[measure]["most"] == max(values)


def test_the_command_prints_a_line_per_policy(checkout: Checkout, engine: Path) -> None:
    trace = checkout.project.root / "mooncake.jsonl"
    trace.write_text(MOONCAKE)
    done = checkout.cli("replay", f"--engine={engine}", f"--trace={trace}")
    assert done.returncode == 0, done.stderr
    assert "mooncake, with prefix cache, blocks of 16, 70% live" in done.stdout
    for policy in POLICIES:
        assert done.stdout.count(f"\n  {policy} ") == 2  # two live shares


def test_builds_of_the_engine_are_compared(checkout: Checkout, engine: Path) -> None:
    done = checkout.cli(
        "replay", "--json", f"--engine=old={engine}", f"--engine=new={engine}",
        "--workload=chat", "--seeds=1", "--concurrency=2", "--turnovers=2",
        "--prefix-cache=no", "--live-share=0.5", "--policy=tagma", "--jobs=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (comparison,) = json.loads(done.stdout)["data"]["comparisons"]
    old, new = comparison["policies"]
    assert (old["policy"], new["policy"]) == ("old", "new")
    assert old["runs_mean"] == new["runs_mean"]


def test_engines_with_other_constants_are_compared(checkout: Checkout) -> None:
    sources = checkout.project.root / "csrc_tagma"
    shutil.copytree(REPOSITORY / "csrc_tagma", sources, dirs_exist_ok=True)
    done = checkout.cli(
        "replay", "--json", "--range-cost=1", "--range-cost=4096", "--workload=chat",
        "--seeds=1", "--concurrency=16", "--turnovers=4", "--prefix-cache=yes",
        "--live-share=0.9", "--policy=tagma",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (comparison,) = json.loads(done.stdout)["data"]["comparisons"]
    cheap, dear = comparison["policies"]
    assert (cheap["policy"], dear["policy"]) == ("range = 1", "range = 4096")
    assert cheap["runs_mean"]["mean"] > dear["runs_mean"]["mean"]


@pytest.mark.parametrize("name", ["nowhere.so", "paged=x.so", "x.so"])
def test_a_bad_engine_is_a_usage_error(checkout: Checkout, name: str) -> None:
    file = checkout.project.root / "x.so"
    file.touch()
    engine = name.replace("x.so", str(file))
    done = checkout.cli("replay", f"--engine={engine}", f"--engine={file}")
    assert done.returncode == 2
    assert "--engine" in done.stderr


def test_the_command_names_an_absent_trace(checkout: Checkout) -> None:
    done = checkout.cli("replay", "--trace=nowhere.jsonl")
    assert done.returncode == 3
    assert "there is no trace at nowhere.jsonl" in done.stderr


def test_a_pool_smaller_than_a_request_is_refused(
    checkout: Checkout, engine: Path
) -> None:
    trace = checkout.project.root / "azure.csv"
    trace.write_text(AZURE)
    done = checkout.cli(
        "replay", f"--engine={engine}", f"--trace={trace}", "--pool-tokens=1000"
    )
    assert done.returncode == 3
    assert "--pool-tokens 4818" in done.stderr
