"""Greedy requests to servers, whose tokens must not depend on who serves them."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.serve import model
from tools.serve.server import Server

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """One request.

    Args:
        prompt: Token ids.
        max_tokens: How many tokens it generates.
        cut: The client leaves after so many of them.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    cut: int | None = None


def send(server: Server, ask: Ask, params: Mapping[str, Any] | None = None) -> Tokens:
    """Return the tokens that a server or a proxy streams.

    A request that is cut ends with its connection, as when a client leaves.

    Args:
        server: What to ask.
        ask: The request.
        params: What names the blocks of a prompt that another server prefilled.

    Raises:
        ToolError: It refused the request or broke off.
    """
    tokens: list[int] = []
    for event in server.events(
        "/v1/completions",
        {
            "model": model.NAME,
            "prompt": list(ask.prompt),
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            **({"kv_transfer_params": params} if params else {}),
        },
    ):
        if "error" in event:
            raise ToolError(
                Outcome.COMMAND_FAILED, f"{server.name} answers with {event['error']}"
            )
        for choice in event["choices"]:
            tokens += choice["token_ids"]
        if ask.cut and len(tokens) >= ask.cut:
            return tuple(tokens[: ask.cut])
    return tuple(tokens)


def send_all(
    server: Server, asks: Sequence[Ask], at_once: int, what: str
) -> tuple[Tokens, ...]:
    """Return the answers to several requests, in their order."""
    with (
        console.step(f"ask {server.name}: {what}", len(asks)) as step,
        ThreadPoolExecutor(at_once) as pool,
    ):

        def one(ask: Ask) -> Tokens:
            tokens = send(server, ask)
            step.advance(1)
            return tokens

        return tuple(pool.map(one, asks))


def wrong_tokens(
    asks: Sequence[Ask], answers: Sequence[Tokens], expected: Mapping[Ask, Tokens]
) -> Iterator[str]:
    """Yield for each answer that differs from a single server's where it does."""
    for number, (ask, tokens) in enumerate(zip(asks, answers, strict=True), 1):
        wanted = expected[ask]
        if tokens != wanted:
            at = next(
                (i for i, (a, b) in enumerate(zip(tokens, wanted, strict=False))
                 if a != b),
                min(len(tokens), len(wanted)),
            )  # fmt: skip
            yield (
                f"request {number} of {len(ask.prompt)} tokens: token {at + 1} is "
                f"{_at(tokens, at)}, a single server's is {_at(wanted, at)}"
            )


def _at(tokens: Tokens, index: int) -> str:
    return str(tokens[index]) if index < len(tokens) else "(ended)"
