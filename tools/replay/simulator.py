"""A continuous-batching scheduler over a placement policy.

It follows upstream's: running requests first, then waiting ones in order while
their whole prompt fits; prompts are computed in chunks within a budget of tokens a
step; every request behind its prompt decodes one token a step; when blocks run out
the request that came last is preempted, and no request is admitted in that step.
Time passes in steps, but work is done only where a request needs a block.
"""

from collections import defaultdict, deque
from dataclasses import dataclass

from tools.replay.counts import RANGE_CAP, Counts
from tools.replay.policy import Holding, Policy
from tools.replay.request import Request, RequestSource
from tools.replay.setting import Setting


@dataclass(eq=False)
class _Running:
    """A request that holds blocks.

    Args:
        request: What is computed.
        held: Its blocks.
        known: Tokens of the prompt, and those generated before a preemption.
        generated: Tokens generated before it was admitted.
        computed: Tokens of these whose content is computed.
        cached: Blocks known by their hashes.
        decoding_since: The step that computed the last of them.
        over_cap: Whether it has had more than `RANGE_CAP` runs.
    """

    request: Request
    held: Holding
    known: int
    generated: int
    computed: int
    cached: int
    decoding_since: int | None = None
    over_cap: bool = False


class Simulator:
    """Runs one policy on one source.

    Args:
        policy: An empty pool.
        source: The requests.
        setting: How to run.
    """

    _SAMPLE_EVERY = 20

    def __init__(self, policy: Policy, source: RequestSource, setting: Setting) -> None:
        self._policy, self._source, self._setting = policy, source, setting
        self._most_live = int(setting.live_share * setting.num_blocks)
        self._waiting: deque[tuple[Request, int, bool]] = deque()
        self._running: dict[_Running, None] = {}
        self._due: dict[int, list[_Running]] = defaultdict(list)
        self._prefilling: list[_Running] = []
        self._blocked_at = -1  # blocks that were free when the first one had to wait
        self._step = 0
        self._counts = Counts()

    def run(self) -> Counts:
        """Run to the end and return what was measured."""
        setting, policy = self._setting, self._policy
        evicted = 0
        while self._step != setting.steps and not self._is_idle():
            if self._step == setting.warm_up:
                self._counts = Counts()
                evicted = policy.removed.count
            policy.begin_step()
            calm = self._decode()
            calm &= self._prefill()
            if calm:
                self._admit()
            # What the last requests leave empty says nothing about the load.
            if self._step % self._SAMPLE_EVERY == 0 and not self._source.ended:
                self._sample()
            self._counts.step_copies[policy.end_step()] += 1
            self._step += 1
        self._counts.evicted_blocks = policy.removed.count - evicted
        self._counts.removed = policy.removed.digest
        return self._counts

    def _is_idle(self) -> bool:
        return self._source.ended and not self._running and not self._waiting

    def _decode(self) -> bool:
        """Serve the decoding requests; False: one was preempted."""
        calm = True
        for running in self._due.pop(self._step, ()):
            if running not in self._running:
                continue  # preempted since
            assert running.decoding_since is not None
            decoded = self._step - running.decoding_since
            if running.generated + decoded >= running.request.output_tokens:
                self._finish(running, decoded)
                continue
            tokens = running.known + decoded
            self._cache(running, tokens - 1)
            calm &= self._grow(running, tokens)
            self._schedule(running)
        return calm

    def _prefill(self) -> bool:
        """Compute further chunks of prompts; False: a request was preempted."""
        self._budget = self._setting.token_budget - (
            len(self._running) - len(self._prefilling)
        )
        calm = True
        for running in self._prefilling.copy():
            if self._budget > 0 and running in self._running:
                calm &= self._compute(running)
        return calm

    def _admit(self) -> None:
        """Admit waiting requests in order, as far as blocks and tokens go."""
        setting, policy = self._setting, self._policy
        while self._budget > 0 and len(self._running) < setting.max_requests:
            if not self._waiting:
                request = self._source.next(self._step)
                if request is None:
                    return
                self._waiting.append((request, 0, True))
                self._blocked_at = -1
            if policy.num_free <= self._blocked_at:
                return
            request, generated, is_first = self._waiting[0]
            known = request.prompt_tokens + generated
            block_size = setting.block_size
            # The last token is computed even if its content is cached.
            hit = policy.look_up(request.hashes, (known - 1) // block_size)
            needed = -(-known // block_size) - hit.num_blocks + hit.num_unheld
            live = setting.num_blocks - policy.num_free
            # A request that is larger than the share runs alone.
            if self._running and (
                live + needed > self._most_live or needed > policy.num_free
            ):
                self._blocked_at = policy.num_free
                return
            self._waiting.popleft()
            self._blocked_at = -1
            hit_tokens = hit.num_blocks * block_size
            if is_first:
                self._counts.admissions += 1
                self._counts.prompt_tokens += request.prompt_tokens
                self._counts.hit_tokens += hit_tokens
            running = _Running(
                request, policy.admit(hit), known, generated, hit_tokens, hit.num_blocks
            )
            self._running[running] = None
            self._prefilling.append(running)
            self._compute(running)

    def _compute(self, running: _Running) -> bool:
        """Compute a chunk of a prompt; False: a request was preempted."""
        chunk = min(self._budget, running.known - running.computed)
        tokens = running.computed + chunk
        calm = self._grow(running, tokens)
        if running in self._running:
            self._budget -= chunk
            running.computed = tokens
            self._cache(running, tokens)
            if tokens == running.known:
                self._prefilling.remove(running)
                running.decoding_since = self._step
                self._schedule(running)
        return calm

    def _schedule(self, running: _Running) -> None:
        """Set when a decoding request needs a block or has all its tokens."""
        if running not in self._running:
            return
        assert running.decoding_since is not None
        room = running.held.num_blocks * self._setting.block_size - running.known
        left = running.request.output_tokens - running.generated
        self._due[running.decoding_since + min(room + 1, left)].append(running)

    def _grow(self, running: _Running, tokens: int) -> bool:
        """Give a request blocks for its tokens; False: a request was preempted."""
        block_size = self._setting.block_size
        needed = -(-tokens // block_size) - running.held.num_blocks
        expected = max(0, -(-running.known // block_size) - -(-tokens // block_size))
        calm = True
        while needed > 0 and not self._policy.grow(running.held, needed, expected):
            calm = False
            last = next(reversed(self._running))
            self._preempt(last)
            if last is running:
                return calm
        self._counts.allocated_blocks += max(needed, 0)
        if running.held.num_runs > RANGE_CAP and not running.over_cap:
            running.over_cap = True
            self._counts.over_cap_requests += 1
        return calm

    def _preempt(self, running: _Running) -> None:
        generated = running.generated
        if running.decoding_since is None:
            self._prefilling.remove(running)
        else:
            generated += self._step - running.decoding_since
        del self._running[running]
        self._policy.release(running.held)
        self._waiting.appendleft((running.request, generated, False))
        self._blocked_at = -1
        self._counts.preemptions += 1

    def _finish(self, running: _Running, decoded: int) -> None:
        # The last token is never computed.
        self._cache(running, running.known + decoded - 1)
        self._counts.runs[running.held.num_runs] += 1
        del self._running[running]
        self._policy.release(running.held)
        self._source.finished(running.request, self._step)

    def _cache(self, running: _Running, tokens: int) -> None:
        """Make the full blocks of the first `tokens` tokens known."""
        full = tokens // self._setting.block_size
        if running.request.hashes and full > running.cached:
            self._policy.cache(running.held, running.cached, full)
            running.cached = full

    def _sample(self) -> None:
        counts = self._counts
        counts.samples += 1
        counts.live_blocks += self._setting.num_blocks - self._policy.num_free
        for running in self._running:
            if running.decoding_since is not None:
                counts.live_runs[running.held.num_runs] += 1
