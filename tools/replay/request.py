"""What arrives at a scheduler: requests, and the sources that they come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """A request and the contents of its blocks.

    Args:
        prompt_tokens: Length of the prompt, at least one token.
        output_tokens: How many tokens it generates, at least one.
        hashes: One number per full block of prompt and output; equal numbers mean
            equal content from the first token on. Empty: no prefix cache.
        session: Which of its source's sessions it belongs to.
    """

    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[int] = ()
    session: int = 0


class RequestSource(Protocol):
    """Where requests come from. Steps of the scheduler are the clock."""

    @property
    def ended(self) -> bool:
        """Whether no request will follow."""

    def next(self, step: int) -> Request | None:
        """Return a request that has arrived by `step`; None: there is none yet."""

    def finished(self, request: Request, step: int) -> None:
        """Take note that a request has got all its tokens."""
