"""The cases of an experiment: a policy under conditions, on requests."""

from dataclasses import dataclass
from functools import cached_property

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.replay.sessions import Sessions, setting_for
from tools.replay.setting import Setting, token_budget
from tools.replay.trace import Replay, Trace
from tools.replay.workload import Workload


@dataclass(frozen=True)
class Conditions:
    """What all policies of one comparison have in common.

    Args:
        workload: The workload's or the trace's name.
        prefix_cache: Whether contents are cached.
        block_size: Tokens per block.
        live_share: See `Setting`.
    """

    workload: str
    prefix_cache: bool
    block_size: int
    live_share: float

    def __str__(self) -> str:
        """Return them as a title."""
        cache = "with" if self.prefix_cache else "no"
        return (
            f"{self.workload}, {cache} prefix cache, blocks of {self.block_size}, "
            f"{self.live_share:.0%} live"
        )


@dataclass(frozen=True)
class Synthetic:
    """One run on a synthetic workload.

    Args:
        workload: The lengths.
        prefix_cache: Whether contents are cached.
        block_size: Tokens per block.
        live_share: See `Setting`.
        policy: Its name.
        seed: Of the workload.
        concurrency: Requests that run at once.
        turnovers: How often they are replaced.
    """

    workload: Workload
    prefix_cache: bool
    block_size: int
    live_share: float
    policy: str
    seed: int
    concurrency: int
    turnovers: int

    @property
    def conditions(self) -> Conditions:
        """What to compare it with."""
        return Conditions(
            self.workload.name, self.prefix_cache, self.block_size, self.live_share
        )

    @cached_property
    def setting(self) -> Setting:
        """The pool and the scheduler."""
        return setting_for(
            self.workload,
            self.concurrency,
            self.prefix_cache,
            self.block_size,
            self.live_share,
            self.turnovers,
        )

    def source(self) -> Sessions:
        """Return the requests."""
        return Sessions(
            self.workload, self.setting, self.concurrency, self.prefix_cache, self.seed
        )


@dataclass(frozen=True)
class Traced:
    """One run on a recorded trace.

    Args:
        trace: The requests.
        pool_tokens: Size of the pool.
        block_size: Tokens per block.
        live_share: See `Setting`.
        policy: Its name.
    """

    trace: Trace
    pool_tokens: int
    block_size: int
    live_share: float
    policy: str
    seed: int = 0

    @property
    def conditions(self) -> Conditions:
        """What to compare it with."""
        return Conditions(
            self.trace.name, self.trace.has_contents, self.block_size, self.live_share
        )

    @cached_property
    def setting(self) -> Setting:
        """The pool and the scheduler."""
        if self.trace.most_tokens > self.pool_tokens:
            raise ToolError(
                Outcome.BAD_TRACE,
                f"a request of {self.trace.name} has {self.trace.most_tokens} tokens, "
                f"and the pool only {self.pool_tokens}",
                (f"Use --pool-tokens {self.trace.most_tokens} or more",),
            )
        prompt, output = self.trace.prompt_tokens, self.trace.output_tokens
        concurrency = self.pool_tokens / (prompt + output)
        return Setting(
            self.pool_tokens // self.block_size,
            self.block_size,
            self.live_share,
            token_budget=token_budget(concurrency, prompt, output),
        )

    def source(self) -> Replay:
        """Return the requests."""
        return Replay(self.trace, self.block_size)


Case = Synthetic | Traced
