"""The engine's benchmark from Python: the same calls through the extension."""

from collections.abc import Callable
from itertools import repeat
from statistics import mean, median, stdev
from time import perf_counter_ns
from typing import Any

from tools.measure.engine_timings import PYTHON, EngineTiming

# How many calls into the extension one call of a scenario makes.
CALLS = {"read a block's references": 1, "allocate+release": 2}
_BLOCKS = 1 << 16  # as in the C++ program


def time_calls(tagma: Any, rounds: int) -> list[EngineTiming]:
    """Time calls into the extension, the loop included.

    Args:
        tagma: The extension.
        rounds: How often each is timed.
    """
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
) -> EngineTiming:
    calls = 5_000
    samples = []
    for _ in range(rounds):
        body(1)
        begin = perf_counter_ns()
        body(calls)
        samples.append((perf_counter_ns() - begin) / calls)
    return EngineTiming(
        scenario,
        0,
        blocks,
        PYTHON,
        calls,
        rounds,
        mean(samples),
        stdev(samples),
        median(samples),
        min(samples),
    )
