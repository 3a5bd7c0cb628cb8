"""Requests to a pair through its proxy, and what they did to both sides."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.measure.pair.node import Node
from tools.measure.pair.phase import Phase, Side, Tokens
from tools.measure.pair.records import Records
from tools.measure.pair.workload import Ask
from tools.serve import model
from tools.serve.server import Server

# Far less than the lease, so that blocks which only its end gives back are missed.
_SETTLE_S = 90.0
_POLL_S = 0.2


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


@dataclass(frozen=True)
class Pair:
    """Servers that prefill, one that decodes, and the proxy before them."""

    prefills: tuple[Node, ...]
    decode: Node
    proxy: Server

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All servers but the proxy."""
        return (*self.prefills, self.decode)

    def phase(self, name: str, asks: Sequence[Ask], at_once: int) -> Phase:
        """Send requests, wait until both sides rest, and return what was counted.

        Args:
            name: What to call it.
            asks: The requests.
            at_once: How many run at the same time.

        Raises:
            ToolError: A server refused a request, broke off or is gone.
        """
        for node in self.nodes:
            node.probe.take_lines()
        before = [node.counters() for node in self.nodes]
        answers = send_all(self.proxy, asks, at_once, name)
        held = self.settle()
        sides = [
            Side(
                node.name,
                node.backend,
                node.counters() - counted,
                Records(tuple(node.probe.take_lines())),
                share,
            )
            for node, counted, share in zip(self.nodes, before, held, strict=True)
        ]
        return Phase(name, tuple(asks), answers, tuple(sides))

    def settle(self) -> list[float]:
        """Wait until no server holds blocks; return the shares that are still held."""
        deadline = time.monotonic() + _SETTLE_S
        while any(held := [node.held_share() for node in self.nodes]):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        return held
