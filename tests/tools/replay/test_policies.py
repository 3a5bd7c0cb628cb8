"""Baselines against what they model."""

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import REPOSITORY

from tools.replay.buddy import Buddy
from tools.replay.experiment import BASELINES
from tools.replay.fit import BestFit, FirstFit
from tools.replay.paged import ContiguousRuns, Paged
from tools.replay.policy import HashIndex, ranges_of

BLOCKS = 64
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
