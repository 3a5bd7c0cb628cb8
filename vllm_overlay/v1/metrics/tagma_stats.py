# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What the scheduler tells about the "tagma" KV cache backend at every step."""

import time
from typing import Any

from vllm.tagma import KVAllocator

SAMPLE_INTERVAL_S = 1.0

# By the allocator's name of a count: the metric, and what it counts.
COUNTERS = {
    "spills": "Growths of a request that needed a further range of KV cache blocks.",
    "block_copies": "KV cache blocks that workers copied since they were moved.",
    "kept_cached_tokens": "Tokens of cached blocks that were moved, and so stay "
    "cached, when their place was given to a request.",
    "cap_events": "Requests that passed the workers' limit of ranges, from which on "
    "they use the materialised block table.",
}

# The largest number of ranges in each of the allocator's classes.
MOST_RANGES = {
    "1": 1,
    "2": 2,
    **{f"{2**n + 1}-{2 ** (n + 1)}": 2 ** (n + 1) for n in range(1, 8)},
    ">256": 257,
}


class TagmaStatsSource:
    """Reads what is new in an allocator, on the scheduler's side.

    Counts leave here as increments: with several front ends each sees only a part
    of the steps.
    """

    def __init__(self, allocator: KVAllocator, block_size: int) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._over_cap = 0
        self._next_sample = 0.0

    def take(self) -> dict[str, Any]:
        """Return what is new since the last call, as plain data for msgpack.

        Returns:
            `largest_extent` in blocks, `requests` and `one_range` (requests that
            hold blocks, and those that do in one range), an increment for each of
            `COUNTERS` and, once in `SAMPLE_INTERVAL_S`, `ranges_per_request` (number
            of requests by class of `MOST_RANGES`).

        """
        stats = self._allocator.stats()
        ranges_per_request = stats["ranges_per_request"]
        taken: dict[str, Any] = {
            "largest_extent": stats["largest_extent"],
            "requests": stats["requests"],
            "one_range": ranges_per_request["1"],
        }
        # The allocator has no limit, so what passes the workers' is counted here.
        over_cap = ranges_per_request[">256"]
        stats["cap_events"] = self._counts["cap_events"] + max(
            0, over_cap - self._over_cap
        )
        self._over_cap = over_cap
        stats["kept_cached_tokens"] = stats["kept_blocks"] * self._block_size
        for name, before in self._counts.items():
            taken[name] = stats[name] - before
            self._counts[name] = stats[name]
        now = time.monotonic()
        if stats["requests"] and now >= self._next_sample:
            self._next_sample = now + SAMPLE_INTERVAL_S
            taken["ranges_per_request"] = ranges_per_request
        return taken


def share_of_one_range(stats: dict[str, Any]) -> float:
    """Return the share of requests with one range; 1 while there are none."""
    return stats["one_range"] / stats["requests"] if stats["requests"] else 1.0
