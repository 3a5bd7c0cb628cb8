"""Baselines against what they model, the simulator, traces, and the command."""

import json
import random
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from checkout import REPOSITORY, Checkout

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.replay import variant
from tools.replay.experiment import BASELINES, Run, Synthetic, Worker
from tools.replay.extents import BestFit, Buddy, FirstFit
from tools.replay.paged import ContiguousRuns, Paged
from tools.replay.policy import HashIndex, ranges_of
from tools.replay.request import Request
from tools.replay.simulator import Setting, Simulator, mean, percentile
from tools.replay.trace import Replay, Trace
from tools.replay.workload import WORKLOADS

BLOCKS = 64
POLICIES = (*BASELINES, "tagma")
Call = list  # [name, request number, *arguments], as JSON has it


def calls(seed: int, count: int = 600) -> list[Call]:
    """Valid calls on a pool that is mostly full, with prefixes that are shared."""
    rng = random.Random(seed)
    pool = Paged(BLOCKS)
    held: dict = {}
    made: list[Call] = []
    for number in range(count):
        kind = rng.choice(["admit", "grow", "grow", "cache", "release"])
        if kind == "admit" or not held:
            chain = rng.randrange(6) * 1000
            fork = rng.randrange(8)
            hashes = [chain + i + (500 if i > fork else 0) for i in range(40)]
            limit = rng.randrange(40)
            held[number] = [pool.admit(pool.look_up(hashes, limit)), 0]
            held[number][1] = held[number][0].num_blocks
            made.append(["admit", number, hashes, limit])
            continue
        number = rng.choice(list(held))
        request, cached = held[number]
        if kind == "grow":
            most = min(pool.num_free, 40 - request.num_blocks, 12)
            if most < 1:
                continue
            grown = rng.randint(1, most)
            assert pool.grow(request, grown)
            made.append(["grow", number, grown])
        elif kind == "cache" and request.num_blocks > cached:
            stop = rng.randint(cached + 1, request.num_blocks)
            pool.cache(request, cached, stop)
            held[number][1] = stop
            made.append(["cache", number, cached, stop])
        elif kind == "release":
            pool.release(request)
            del held[number]
            made.append(["release", number])
    return made


def replay(pool, stream: list[Call]) -> Iterator[tuple[list[int], int]]:
    """Make the calls and yield what the request then holds, and what is free."""
    held: dict = {}
    for name, number, *arguments in stream:
        if name == "admit":
            held[number] = pool.admit(pool.look_up(*arguments))
        elif name == "grow":
            assert pool.grow(held[number], *arguments)
        elif name == "cache":
            pool.cache(held[number], *arguments)
        else:
            pool.release(held[number])
        yield blocks_of(held[number]), pool.num_free


def blocks_of(held) -> list[int]:
    return list(held.blocks if hasattr(held, "blocks") else held.blocks_from(0))


class ListPool:
    """The paged policy with one plain list, and no care for speed."""

    def __init__(self) -> None:
        self.queue = list(range(BLOCKS))
        self.refs = [0] * BLOCKS
        self.hash_of: dict[int, int] = {}  # in the order of insertion

    def run(self, stream: list[Call]) -> Iterator[tuple[list[int], int]]:
        held: dict[int, tuple[list[int], list[int]]] = {}
        for name, number, *arguments in stream:
            if name == "admit":
                hashes, limit = arguments
                held[number] = ([], hashes)
                for key in hashes[:limit]:
                    found = [b for b, other in self.hash_of.items() if other == key]
                    if not found:
                        break
                    if found[0] in self.queue:
                        self.queue.remove(found[0])
                    self.refs[found[0]] += 1
                    held[number][0].append(found[0])
            blocks, hashes = held[number]
            if name == "grow":
                for _ in range(arguments[0]):
                    block = self.queue.pop(0)
                    self.hash_of.pop(block, None)
                    self.refs[block] = 1
                    blocks.append(block)
            elif name == "cache":
                for index in range(*arguments):
                    self.hash_of[blocks[index]] = hashes[index]
            elif name == "release":
                gone = []
                for block in reversed(blocks):
                    self.refs[block] -= 1
                    if not self.refs[block]:
                        gone.append(block)
                first = [b for b in gone if b not in self.hash_of]
                last = [b for b in gone if b in self.hash_of]
                self.queue = first + self.queue + last
                blocks.clear()
            yield list(blocks), len(self.queue)


@pytest.mark.parametrize("seed", range(20))
def test_paged_places_as_a_plain_list_does(seed: int) -> None:
    stream = calls(seed)
    assert list(replay(Paged(BLOCKS), stream)) == list(ListPool().run(stream))


def test_paged_places_as_upstreams_block_pool_does() -> None:
    python = REPOSITORY / "build" / "venv" / "bin" / "python"
    if not python.exists():
        pytest.skip("needs vLLM: python -m tools build")
    stream = calls(seed=0, count=5000)
    script = Path(__file__).with_name("block_pool_replay.py")
    done = subprocess.run(
        [python, script],
        input=json.dumps({"num_blocks": BLOCKS, "calls": stream}),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    upstream = [(ids, free) for ids, free in map(json.loads, lines)]
    assert list(replay(Paged(BLOCKS), stream)) == upstream


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("seed", range(5))
def test_every_baseline_keeps_each_block_in_one_place(name: str, seed: int) -> None:
    """The streams are valid for paged; others may find more or fewer hits."""
    pool = BASELINES[name](BLOCKS)
    held: dict = {}
    contents: dict[int, int] = {}
    for call, number, *arguments in calls(seed):
        if call == "admit":
            hashes, limit = arguments
            held[number] = pool.admit(pool.look_up(hashes, limit))
            found = blocks_of(held[number])
            assert [contents[block] for block in found] == hashes[: len(found)]
        elif call == "grow":
            before = blocks_of(held[number])
            others = {b for h in held.values() for b in blocks_of(h)}
            free = pool.num_free
            if not pool.grow(held[number], arguments[0]):
                assert free < arguments[0]
                assert blocks_of(held[number]) == before
                continue
            added = blocks_of(held[number])[len(before) :]
            assert len(added) == arguments[0] and not others.intersection(added)
            for block in added:
                contents.pop(block, None)
        elif call == "cache":
            start, stop = arguments
            stop = min(stop, held[number].num_blocks)
            if start < stop:
                pool.cache(held[number], start, stop)
                blocks = blocks_of(held[number])[start:stop]
                contents |= zip(blocks, held[number].hashes[start:stop], strict=True)
        else:
            pool.release(held.pop(number))
        for request in held.values():
            blocks = blocks_of(request)
            assert request.num_runs == len(list(ranges_of(blocks)))
            assert request.num_blocks == len(blocks)
    for request in held.values():
        pool.release(request)
    assert pool.num_free == BLOCKS
    everything = pool.admit(pool.look_up([], 0))
    assert pool.grow(everything, BLOCKS)
    assert sorted(blocks_of(everything)) == list(range(BLOCKS))
    if not isinstance(pool, Paged):
        assert everything.num_runs == 1  # all free extents had merged


def new(pool):
    return pool.admit(pool.look_up([], 0))


def with_gaps(pool) -> None:
    """Leave free extents: 4 blocks at 2, 2 at 8, the rest from 12 on."""
    kept = []
    for count, keep in ((2, True), (4, False), (2, True), (2, False), (2, True)):
        kept.append((new(pool), keep))
        assert pool.grow(kept[-1][0], count)
    for held, keep in kept:
        if not keep:
            pool.release(held)


@pytest.mark.parametrize(
    ("kind", "count", "place"),
    [
        (FirstFit, 2, [(2, 2)]),
        (FirstFit, 5, [(12, 5)]),
        (BestFit, 2, [(8, 2)]),
        (BestFit, 3, [(2, 3)]),
        (FirstFit, 53, [(12, 52), (2, 1)]),
    ],
)
def test_fits_choose_the_extent_that_their_name_says(
    kind: type, count: int, place: list[tuple[int, int]]
) -> None:
    pool = kind(BLOCKS)
    with_gaps(pool)
    held = new(pool)
    pool.grow(held, count)
    assert held.ranges == place


def test_a_fit_grows_in_place_first() -> None:
    pool = BestFit(BLOCKS)
    first = new(pool)
    pool.grow(first, 3)
    pool.grow(first, 2)
    assert first.ranges == [(0, 5)]


def test_buddy_rounds_up_and_gives_back_what_it_rounded() -> None:
    pool = Buddy(BLOCKS)
    held = new(pool)
    pool.grow(held, 5)
    assert pool.num_free == BLOCKS - 8
    pool.grow(held, 3)
    assert (held.num_runs, pool.num_free) == (1, BLOCKS - 8)
    pool.release(held)
    assert pool.num_free == BLOCKS


def test_contiguous_runs_come_before_the_front_of_the_queue() -> None:
    pool = ContiguousRuns(BLOCKS)
    requests = [new(pool) for _ in range(8)]
    for request in requests:
        pool.grow(request, 4)
    for request in requests[::2]:
        pool.release(request)
    added = new(pool)
    pool.grow(added, 6)
    # Freed fours are at the front of the queue, but behind them is a longer run.
    assert list(ranges_of(added.blocks)) == [(32, 6)]
    grown = requests[1]
    pool.grow(grown, 2)
    assert list(ranges_of(grown.blocks)) == [(4, 6)]


def test_of_blocks_with_one_hash_the_first_is_found() -> None:
    index = HashIndex()
    index.insert(5, 1)
    index.insert(3, 1)
    assert index.match([1, 2]) == [5]
    index.remove(5)
    assert index.match([1]) == [3]
    index.remove(3)
    assert index.match([1]) == []


class Listed:
    """A source with a list of requests."""

    def __init__(self, *requests: Request) -> None:
        self.left = list(requests)
        self.done: list[tuple[int, int]] = []

    @property
    def ended(self) -> bool:
        return not self.left

    def next(self, step: int) -> Request | None:
        return self.left.pop(0) if self.left else None

    def finished(self, request: Request, step: int) -> None:
        self.done.append((request.session, step))


class Watched(Paged):
    """Paged that notes how many blocks each request gave back."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.given_back: list[int] = []

    def release(self, held) -> None:
        self.given_back.append(held.num_blocks)
        super().release(held)


def test_a_request_holds_the_blocks_of_its_tokens_but_the_last() -> None:
    rng = random.Random(7)
    requests = [
        Request(rng.randint(1, 200), rng.randint(1, 100), session=i) for i in range(50)
    ]
    policy, source = Watched(1000), Listed(*requests)
    Simulator(policy, source, Setting(1000, 16, 1.0, token_budget=64)).run()
    order = [requests[number] for number, _ in source.done]
    expected = [-(-(r.prompt_tokens + r.output_tokens - 1) // 16) for r in order]
    assert policy.given_back == expected
    assert len(order) == 50


def test_a_prompt_takes_its_chunks_and_each_token_a_step() -> None:
    # 100 tokens at 40 a step are computed in steps 0 to 2, which gives the first
    # token; four more follow.
    source = Listed(Request(100, 5))
    Simulator(Paged(20), source, Setting(20, 16, 1.0, token_budget=40)).run()
    assert source.done == [(0, 7)]


def test_the_last_request_is_preempted_and_finds_its_blocks_again() -> None:
    requests = [
        Request(48, 60, range(number * 100, number * 100 + 6), number)
        for number in range(2)
    ]
    source = Listed(*requests)
    counts = Simulator(Paged(10), source, Setting(10, 16, 1.0)).run()
    assert counts.preemptions == 1
    assert [number for number, _ in source.done] == [0, 1]
    assert counts.admissions == 2
    # Its own blocks, found after the preemption, are no hits of a new prompt.
    assert counts.hit_tokens == 0


def test_a_shared_prefix_is_hit_but_its_last_token_is_computed() -> None:
    same = [Request(64, 1, range(4), number) for number in range(2)]
    counts = Simulator(Paged(20), Listed(*same), Setting(20, 16, 1.0)).run()
    assert (counts.prompt_tokens, counts.hit_tokens) == (128, 48)


def test_requests_wait_while_the_live_share_is_used() -> None:
    source = Listed(*(Request(64, 10, session=i) for i in range(3)))
    Simulator(Paged(20), source, Setting(20, 16, 0.3)).run()
    ends = [step for _, step in source.done]
    assert ends == sorted(set(ends))  # one after the other


def test_mean_and_percentile_of_counted_values() -> None:
    counted = {1: 98, 5: 1, 9: 1}
    assert mean(counted) == pytest.approx(1.12)
    assert [percentile(counted, share) for share in (0.5, 0.98, 0.99, 1.0)] == [
        1, 1, 5, 9,
    ]  # fmt: skip
    assert (mean({}), percentile({}, 0.5)) == (0.0, 0)


MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 20, "hash_ids": [7, 8, 9]}
{"timestamp": 5, "input_length": 1030, "output_length": 1, "hash_ids": [7, 8, 10]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""


def test_mooncakes_hash_ids_become_hashes_of_blocks(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE)
    source = Replay(Trace.read(path), 16)
    first, second = source.next(0), source.next(0)
    assert first and second and source.ended
    assert (len(first.hashes), len(second.hashes)) == (1120 // 16, 1031 // 16)
    # 512-token ids 7 and 8 are shared: 64 blocks; what is generated is not.
    assert first.hashes[:64] == second.hashes[:64] == list(range(7 * 32, 9 * 32))
    assert not set(first.hashes[64:]) & set(second.hashes[64:])
    assert len(set(first.hashes)) == len(first.hashes)


def test_azures_table_has_lengths_and_no_contents(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    trace = Trace.read(path, limit=1)
    assert trace.records == ((4808, 10, ()),)
    assert not trace.has_contents


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.jsonl", None, "there is no trace at"),
        ("trace.txt", "", ".txt is no known kind"),
        ("broken.jsonl", "{", "not a trace that can be read"),
        ("other.csv", "a,b\n1,2\n", "ContextTokens"),
        ("empty.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
    ],
)
def test_a_bad_trace_is_named(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ToolError, match=message) as raised:
        Trace.read(path)
    assert raised.value.outcome is Outcome.BAD_TRACE
    assert raised.value.next_steps


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The extension, compiled from this checkout without CMake."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    target = tmp_path_factory.mktemp("engine") / "tagma.abi3.so"
    source = REPOSITORY / "csrc_tagma" / "tagma_bindings.cpp"
    subprocess.run(
        [compiler, "-std=c++17", "-O1", "-fPIC", "-shared",
         "-DPy_LIMITED_API=0x030B0000", f"-I{sysconfig.get_path('include')}",
         source, "-o", target],
        check=True,
    )  # fmt: skip
    return target


@pytest.fixture
def run(engine: Path) -> Callable[..., Run]:
    def run(policy: str, seed: int = 0, cached: bool = True) -> Run:
        case = Synthetic(WORKLOADS[0], cached, 16, 0.7, policy, seed, 8, 4)
        return Worker({"tagma": engine})(case)

    return run


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_determines_every_count(run: Callable[..., Run], policy: str) -> None:
    def counts(seed: int) -> dict[str, float]:
        return asdict(run(policy, seed)) | {"seconds": 0, "seed": 0}

    assert counts(3) == counts(3)
    assert counts(3) != counts(4)


def test_the_engine_holds_requests_in_fewer_runs_than_paged(
    run: Callable[..., Run],
) -> None:
    for cached in (False, True):
        ours, paged = run("tagma", cached=cached), run("paged", cached=cached)
        assert ours.runs_mean < paged.runs_mean
        assert ours.preemptions <= paged.preemptions


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
            "cap_events", "preemptions", "admissions",
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


def test_a_request_beyond_a_small_pool_is_shortened() -> None:
    """Else it would be preempted and admitted again for ever."""
    workload = WORKLOADS[0]
    case = Synthetic(workload, True, 32, 0.9, "paged", 1, concurrency=1, turnovers=40)
    pool = case.setting.num_blocks * 32
    source = case.source()
    step, asked = 0, 0
    longest = 0
    while asked < 200:
        step += 1
        if request := source.next(step):
            longest = max(longest, request.prompt_tokens + request.output_tokens)
            source.finished(request, step)
            asked += 1
    assert longest == pool


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


def test_every_policy_of_replacement_applies_to_the_engine(
    checkout: Checkout, engine: Path
) -> None:
    """They are patches of sources that change."""
    sources = checkout.project.root / "csrc_tagma"
    shutil.copytree(REPOSITORY / "csrc_tagma", sources, dirs_exist_ok=True)
    assert set(variant.NAMES) == {"hot-heads", "segmented-lru", "two-queue"}
    done = checkout.cli(
        "replay", "--json", f"--engine={engine}", "--workload=chat", "--seeds=1",
        "--concurrency=16", "--turnovers=4", "--prefix-cache=yes", "--live-share=0.7",
        "--policy=tagma", *(f"--variant={name}" for name in variant.NAMES),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (comparison,) = json.loads(done.stdout)["data"]["comparisons"]
    hits = {p["policy"]: p["hit_share"]["mean"] for p in comparison["policies"]}
    assert set(hits) == {"tagma", *variant.NAMES}
    assert len(set(hits.values())) > 1, "they do replace other blocks"


def test_a_policy_that_does_not_apply_is_named(checkout: Checkout) -> None:
    sources = checkout.project.root / "csrc_tagma"
    shutil.copytree(REPOSITORY / "csrc_tagma", sources, dirs_exist_ok=True)
    (sources / "kv_allocator.h").write_text("// another engine\n")
    done = checkout.cli("replay", "--variant=two-queue", "--range-cost=64")
    assert done.returncode == 1
    assert "the variant two-queue does not apply" in done.stderr
    assert "two-queue.patch" in done.stderr


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
