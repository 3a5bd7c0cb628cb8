"""The policy before: windows for which cached blocks were evicted, as recorded.

`before.json` has what it gave, with the commit and the commands; means over seeds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.replay.case import Conditions

_FILE = Path(__file__).with_name("before.json")


@dataclass(frozen=True)
class Before:
    """What the policy gave on one load, averaged over the seeds.

    Args:
        workload: The workload's or the trace's name.
        live_share: See `Setting`.
        seeds: How many there were.
        runs_mean: Runs per request when it ended.
        runs_p99: Their 99th percentile.
        hits_of_paged: Tokens found in the prefix cache, of paged's.
        preemptions: Requests that lost their blocks.
        evicted_blocks: Blocks whose cached content was lost.
    """

    workload: str
    live_share: float
    seeds: int
    runs_mean: float
    runs_p99: float
    hits_of_paged: float
    preemptions: float
    evicted_blocks: int


@cache
def _recorded() -> Mapping[tuple[str, float], Before]:
    loads = (Before(**load) for load in json.loads(_FILE.read_text("utf-8"))["loads"])
    return {(load.workload, load.live_share): load for load in loads}


@cache
def commit() -> str:
    """Return the commit whose engine was measured."""
    name: str = json.loads(_FILE.read_text("utf-8"))["commit"]
    return name


def before(conditions: Conditions) -> Before | None:
    """Return what was recorded for a load; None: nothing was."""
    return _recorded().get((conditions.workload, conditions.live_share))
