"""A vLLM plugin that records what the scheduler does to KV blocks.

`tools.measure.demo.plugin` copies this file, so it imports nothing of the tools.
JSON lines go to the file that TAGMA_PROBE_FILE names:

- Each time a request gives its blocks back, because it ended or was preempted: in how
  many runs it held them. A run is a maximal contiguous stretch of a request's blocks,
  whatever manager placed them.
- For each step whose blocks are copied: how many, and how many steps were under way
  when it was scheduled. Without asynchronous scheduling that is 0.
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


def record(**line: object) -> None:
    """Add a line to the file."""
    with open(os.environ["TAGMA_PROBE_FILE"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def register() -> None:
    """Wrap the scheduler's methods that begin and end a step and give blocks back."""
    from vllm.v1.core.sched.scheduler import Scheduler

    give_back = Scheduler._free_request_blocks
    schedule, update = Scheduler.schedule, Scheduler.update_from_output
    if give_back.__module__ == __name__:
        return  # vLLM may load a plugin more than once
    under_way = 0

    def record_and_give_back(self: Any, request: Any) -> None:
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        if blocks:
            runs = count_runs(list(blocks))
            record(request=request.request_id, blocks=len(blocks), runs=runs)
        give_back(self, request)

    def schedule_and_record(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal under_way
        output = schedule(self, *args, **kwargs)
        if output.kv_cache_block_copies:
            record(copies=len(output.kv_cache_block_copies), steps_under_way=under_way)
        under_way += 1
        return output

    def end_step_and_update(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal under_way
        under_way -= 1
        return update(self, *args, **kwargs)

    Scheduler._free_request_blocks = record_and_give_back
    Scheduler.schedule = schedule_and_record
    Scheduler.update_from_output = end_step_and_update
