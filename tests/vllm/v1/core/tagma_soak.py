# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A long run of the scheduler on a nearly full pool of the "tagma" backend.

Usage: python -m tests.v1.core.tagma_soak STEPS

Prints one JSON object per check and a last one with the verdict. Exit code 1 if a
promise was broken.
"""

import gc
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.v1.core.scheduler_driver import (
    Arrival,
    Driver,
    SchedulerFactory,
    Setting,
    write_model_config,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

SETTING = Setting(num_blocks=1024, block_size=16, token_budget=2048, max_num_seqs=256)
USAGE = 0.975  # of the pool at least, on average
CHECK_EVERY = 1000  # steps
RSS_GROWTH = 0.01


@dataclass(frozen=True)
class Check:
    """What one check saw, after it found every invariant kept.

    Args:
        step: Steps taken so far.
        usage: Mean share of the pool in use since the last check.
        rss_kib: Resident memory of the process.
        requests: Requests that hold blocks.
        one_range: Share of them with one range.
        spills: Growths that needed a further range, since the start.
        evicted_blocks: Cached blocks that were evicted, since the start.
        preemptions: Preempted requests, since the start.

    """

    step: int
    usage: float
    rss_kib: int
    requests: int
    one_range: float
    spills: int
    evicted_blocks: int
    preemptions: int


@dataclass(frozen=True)
class Verdict:
    """The end of a soak.

    Args:
        steps: Steps taken under load.
        finished: Requests that came to their end or were aborted.
        usage: Mean share of the pool in use after the warm-up.
        rss_growth: Most that the resident memory exceeded that after the warm-up,
            as a part of it.
        problems: The promises that were broken.

    """

    steps: int
    finished: int
    usage: float
    rss_growth: float
    problems: tuple[str, ...]


class Soak:
    """A scheduler in which some requests always wait for room.

    Args:
        factory: Makes the scheduler.
        seed: Of the arrivals and aborts.
        reset_every: Steps after which the prefix cache is reset under load.

    """

    def __init__(
        self, factory: SchedulerFactory, seed: int = 0, reset_every: int = 20_000
    ):
        self.reset_every = reset_every
        self.driver = Driver(factory.make(SETTING, "tagma"), SETTING)
        self.rng = random.Random(seed)
        self.num_arrived = self.num_finished = self.preemptions = 0

    def run(
        self,
        steps: int,
        check_every: int = CHECK_EVERY,
        report: Callable[[Check], None] = lambda check: None,
    ) -> Verdict:
        """Take `steps` steps under load, then let every request end.

        Raises:
            RuntimeError: The allocator breaks an invariant.

        """
        checks: list[Check] = []
        usage = 0.0
        for step in range(1, steps + 1):
            self.step(step)
            usage += self.driver.manager.usage
            if step % check_every == 0:
                checks.append(self.check(step, usage / check_every))
                report(checks[-1])
                usage = 0.0
        self.drain()
        warm = checks[len(checks) // 10 :]
        growth = max(check.rss_kib for check in warm) / warm[0].rss_kib - 1
        mean_usage = sum(check.usage for check in warm) / len(warm)
        return Verdict(
            steps,
            self.num_finished,
            mean_usage,
            growth,
            tuple(self.problems(growth, mean_usage)),
        )

    def step(self, step: int) -> None:
        scheduler = self.driver.scheduler
        # Those that wait take whatever becomes free.
        while len(scheduler.waiting) < 16:
            self.arrive()
        if self.rng.random() < 0.01:
            self.driver.abort(self.rng.choice(list(scheduler.requests)))
        if step % self.reset_every == 0:
            scheduler.reset_prefix_cache(reset_running_requests=True)
        output = self.driver.step()
        self.preemptions += len(output.preempted_req_ids or ())
        self.forget_finished()

    def arrive(self) -> None:
        arrival = Arrival(
            conversation=self.rng.randrange(64),
            num_prompt_tokens=self.rng.randrange(64, 256),
            max_tokens=self.rng.randrange(16, 128),
        )
        self.driver.add(str(self.num_arrived), arrival)
        self.num_arrived += 1

    def forget_finished(self) -> None:
        """Keep nothing of a request that has ended: memory is watched here."""
        driver = self.driver
        for request_id in driver.finished:
            del driver.tokens[request_id], driver.conversations[request_id]
        self.num_finished += len(driver.finished)
        driver.finished.clear()

    def check(self, step: int, usage: float) -> Check:
        allocator = self.driver.manager.block_pool.allocator
        allocator.check_invariants()
        stats = allocator.stats()
        gc.collect()
        return Check(
            step,
            usage,
            resident_kib(),
            stats["requests"],
            stats["ranges_per_request"]["1"] / max(stats["requests"], 1),
            stats["spills"],
            stats["evicted_blocks"],
            self.preemptions,
        )

    def drain(self) -> None:
        while self.driver.scheduler.has_requests():
            self.driver.step()
            self.forget_finished()
        self.driver.manager.block_pool.allocator.check_invariants()

    def problems(self, growth: float, usage: float) -> Iterator[str]:
        """Yield the promises that were broken."""
        if growth > RSS_GROWTH:
            yield f"resident memory grew by {growth:.1%}"
        if usage < USAGE:
            yield f"only {usage:.1%} of the pool was in use"
        if self.num_finished != self.num_arrived:
            yield f"{self.num_arrived - self.num_finished} requests never ended"
        if self.driver.num_free_blocks != SETTING.num_blocks:
            yield f"{SETTING.num_blocks - self.driver.num_free_blocks} blocks leaked"
        elif not self.driver.scheduler.reset_prefix_cache():
            yield "the prefix cache cannot be reset"
        else:
            stats = self.driver.manager.block_pool.allocator.stats()
            if stats["free_blocks"] != SETTING.num_blocks:
                yield f"only {stats['free_blocks']} blocks are free after a reset"


def resident_kib() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def main(steps: int) -> int:
    """Run a soak and print what it sees; return the exit code."""
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(SchedulerFactory(write_model_config(Path(folder))))
        verdict = soak.run(
            steps,
            min(CHECK_EVERY, steps),
            lambda check: print(json.dumps(asdict(check)), flush=True),
        )
    print(json.dumps(asdict(verdict)), flush=True)
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
