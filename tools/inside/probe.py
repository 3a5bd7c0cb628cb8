"""A vLLM plugin that records in how many runs a request held its KV blocks.

`tools.measure.demo.plugin` copies this file, so it imports nothing of the tools.
A run is a maximal contiguous stretch of a request's blocks, whatever manager
placed them. Each time a request gives its blocks back, because it ended or was
preempted, one JSON line goes to the file that TAGMA_PROBE_FILE names.
"""

import json
import os
from typing import Any


def count_runs(blocks: list[int]) -> int:
    """Return the number of maximal contiguous stretches.

    >>> count_runs([4, 5, 6, 9, 1, 2])
    3
    """
    return sum(
        index == 0 or block != blocks[index - 1] + 1
        for index, block in enumerate(blocks)
    )


def register() -> None:
    """Wrap the one method of the scheduler through which blocks are given back."""
    from vllm.v1.core.sched.scheduler import Scheduler

    give_back = Scheduler._free_request_blocks
    if give_back.__module__ == __name__:
        return  # vLLM may load a plugin more than once

    def record_and_give_back(self: Any, request: Any) -> None:
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        if blocks:
            line = {
                "request": request.request_id,
                "blocks": len(blocks),
                "runs": count_runs(list(blocks)),
            }
            with open(os.environ["TAGMA_PROBE_FILE"], "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        give_back(self, request)

    Scheduler._free_request_blocks = record_and_give_back
