"""How the simulated scheduler runs, and over which pool."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """How the scheduler runs.

    Args:
        num_blocks: Size of the pool.
        block_size: Tokens per block.
        live_share: Requests are admitted while those that run hold at most this
            part of the pool.
        steps: When to stop; None: when the source has ended.
        warm_up: Steps at the beginning that are not measured.
        token_budget: Tokens computed in a step.
        max_requests: Requests that run at once.
    """

    num_blocks: int
    block_size: int
    live_share: float
    steps: int | None = None
    warm_up: int = 0
    token_budget: int = 8192
    max_requests: int = 1024


def token_budget(concurrency: float, prompt_tokens: float, output_tokens: float) -> int:
    """Return a token budget that does not hold up admissions.

    As fast as requests end others come; their prompts must not take longer.

    Args:
        concurrency: Requests that run at once.
        prompt_tokens: Mean length of their prompts.
        output_tokens: Mean length of their outputs.
    """
    arriving = concurrency * prompt_tokens / output_tokens
    return max(Setting.token_budget, int(2 * arriving))
