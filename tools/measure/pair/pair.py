"""Requests to a pair through its proxy, and what they did to both sides."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tools.measure.greedy import Ask, send_all
from tools.measure.pair.node import Node
from tools.measure.pair.phase import Phase, Side
from tools.measure.pair.records import Records
from tools.serve.server import Server

# Far less than the lease, so that blocks which only its end gives back are missed.
_SETTLE_S = 90.0
_POLL_S = 0.2


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
