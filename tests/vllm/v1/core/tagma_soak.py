# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A long run of the scheduler on a nearly full pool of the "tagma" backend.

Usage: python -m tests.v1.core.tagma_soak STEPS

The content of every block is carried along through the moves of each step, and is
compared when a request is admitted, when it ends, and for all blocks at every check.

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
from statistics import fmean

import numpy as np

from tests.v1.core.scheduler_driver import (
    Arrival,
    Driver,
    SchedulerFactory,
    Setting,
    token_at,
    write_model_config,
)
from tests.v1.core.worker_memory import WorkerMemory, contents_of
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

SETTING = Setting(
    num_blocks=1024,
    block_size=16,
    token_budget=2048,
    max_num_seqs=256,
    zeroing=True,
)
CONVERSATIONS = 64
MOST_PROMPT_TOKENS = 256
MOST_NEW_TOKENS = 128
USAGE = 0.975  # of the pool at least, on average while requests wait
# Nobody arrives in the last steps of each so many: then most blocks are only cached,
# and are moved when the next requests come.
PERIOD, LULL = 100, 40
CHECK_EVERY = 1000  # steps
RSS_GROWTH = 0.01


@dataclass(frozen=True)
class Check:
    """What one check saw, after it found every invariant kept.

    Args:
        step: Steps taken so far.
        usage: Mean share of the pool in use since the last check, while some waited.
        rss_kib: Resident memory of the process.
        requests: Requests that hold blocks.
        one_range: Share of them with one range.
        spills: Growths that needed a further range, since the start.
        evicted_blocks: Cached blocks that were evicted, since the start.
        block_copies: Moves that the workers made, since the start.
        hit_tokens: Tokens found in the prefix cache, since the start.
        preemptions: Preempted requests, since the start.

    """

    step: int
    usage: float
    rss_kib: int
    requests: int
    one_range: float
    spills: int
    evicted_blocks: int
    block_copies: int
    hit_tokens: int
    preemptions: int


@dataclass(frozen=True)
class Verdict:
    """The end of a soak.

    Args:
        steps: Steps taken under load.
        finished: Requests that came to their end or were aborted.
        usage: Mean share of the pool in use after the warm-up, while some waited.
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
    """A scheduler in which requests wait for room most of the time.

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
        self.memory = WorkerMemory(SETTING, self.driver.conversations)
        self.cached_contents = dict(all_cached_contents())
        self.rng = random.Random(seed)
        self.num_arrived = self.num_finished = self.preemptions = self.hit_tokens = 0

    def run(
        self,
        steps: int,
        check_every: int = CHECK_EVERY,
        report: Callable[[Check], None] = lambda check: None,
    ) -> Verdict:
        """Take `steps` steps under load, then let every request end.

        Raises:
            RuntimeError: The allocator breaks an invariant.
            AssertionError: A block does not hold what it should.

        """
        checks: list[Check] = []
        usages: list[float] = []
        for step in range(1, steps + 1):
            self.step(step)
            if self.driver.scheduler.waiting:
                usages.append(self.driver.manager.usage)
            if step % check_every == 0:
                checks.append(self.check(step, fmean(usages)))
                report(checks[-1])
                usages.clear()
        self.drain()
        warm = checks[len(checks) // 10 :]
        growth = max(check.rss_kib for check in warm) / warm[0].rss_kib - 1
        mean_usage = fmean(check.usage for check in warm)
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
        while len(scheduler.waiting) < 16 and step % PERIOD < PERIOD - LULL:
            self.arrive()
        if self.rng.random() < 0.01:
            self.driver.abort(self.rng.choice(list(scheduler.requests)))
        if step % self.reset_every == 0:
            scheduler.reset_prefix_cache(reset_running_requests=True)
        self.take_step()

    def take_step(self) -> None:
        output = self.driver.step()
        self.memory.run(output)
        self.preemptions += len(output.preempted_req_ids or ())
        self.hit_tokens += sum(
            new.num_computed_tokens for new in output.scheduled_new_reqs
        )
        self.forget_finished()

    def arrive(self) -> None:
        arrival = Arrival(
            conversation=self.rng.randrange(CONVERSATIONS),
            num_prompt_tokens=self.rng.randrange(64, MOST_PROMPT_TOKENS),
            max_tokens=self.rng.randrange(16, MOST_NEW_TOKENS),
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
        self.compare_contents()
        gc.collect()
        return Check(
            step,
            usage,
            resident_kib(),
            stats["requests"],
            stats["ranges_per_request"]["1"] / max(stats["requests"], 1),
            stats["spills"],
            stats["evicted_blocks"],
            self.memory.num_moves,
            self.hit_tokens,
            self.preemptions,
        )

    def compare_contents(self) -> None:
        """Compare what each block holds with what a request or the index expects."""
        self.memory.check_all()
        hash_of = self.driver.manager.block_pool.index.hash_of
        for block in range(1, SETTING.num_blocks + 1):
            if (block_hash := hash_of(block)) is not None:
                expected = self.cached_contents[block_hash]
                assert np.array_equal(self.memory.slots[block], expected), (
                    f"block {block} is not what was cached there"
                )

    def drain(self) -> None:
        while self.driver.scheduler.has_requests():
            self.take_step()
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


def all_cached_contents() -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield the hash of each block that may be cached, and what it then holds."""
    block_size = SETTING.block_size
    hasher = get_request_block_hasher(block_size, sha256)
    num_tokens = MOST_PROMPT_TOKENS + MOST_NEW_TOKENS
    for conversation in range(CONVERSATIONS):
        request = Request(
            request_id="",
            prompt_token_ids=[token_at(conversation, p) for p in range(num_tokens)],
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=hasher,
        )
        contents = contents_of(conversation).reshape(-1, block_size)
        yield from zip(request.block_hashes, contents)


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
