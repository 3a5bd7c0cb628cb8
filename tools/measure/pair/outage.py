"""A prefill server that is killed while its blocks are read, and one in its place."""

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tools.base.errors import ToolError
from tools.measure.greedy import Ask, Tokens, send, wrong_tokens
from tools.measure.pair.connector import Role
from tools.measure.pair.node import Launcher, Node
from tools.measure.pair.pair import Pair
from tools.measure.pair.phase import Phase
from tools.measure.pair.result import Round, Setting
from tools.serve import model

# Over shared memory the decode side would read a stopped server's blocks by itself.
_TRANSPORTS = "tcp,self"
_POST_S, _ANSWER_S = 60.0, 240.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Outage:
    """Two servers that prefill, one that decodes; one of the two is killed.

    Args:
        launcher: Starts them.
        setting: What they run.
        asks: Requests to send before, meanwhile and afterwards.
        victim: The one whose transfer is broken off.
        expected: What a single server answers.
        at_once: How many requests run at the same time.
    """

    launcher: Launcher
    setting: Setting
    asks: Sequence[Ask]
    victim: Ask
    expected: Mapping[Ask, Tokens]
    at_once: int

    def run(self) -> Round:
        """Run it.

        Raises:
            ToolError: A server failed that was not to fail.
        """
        with ExitStack() as stack:
            pair = self._start(stack)
            before = pair.phase("two prefills", self.asks, self.at_once)
            problems = [*before.problems(self.expected), *_unused(pair, before)]
            first, second = pair.prefills
            problems += self._kill(first, pair.decode)
            rest = Pair((second,), pair.decode, pair.proxy)
            problems += self._survivor(rest)
            first = self._node(stack, 1, ports=(first.port, first.side_port))
            first.wait_ready()
            again = Pair((first, second), pair.decode, pair.proxy)
            after = again.phase("one restarted", self.asks, self.at_once)
            problems += [*after.problems(self.expected), *_unused(again, after)]
        return Round(self.setting, (before, after), tuple(problems))

    def _start(self, stack: ExitStack) -> Pair:
        prefills = (self._node(stack, 1), self._node(stack, 2))
        decode = self.launcher.node(
            stack,
            f"{self.setting.file_name}-decode",
            self.setting.decode,
            Role.DECODE,
            transports=_TRANSPORTS,
        )
        for node in (*prefills, decode):
            node.wait_ready()
        name = self.setting.file_name
        return Pair(
            prefills,
            decode,
            self.launcher.proxy(stack, name, self.setting.connector, prefills, decode),
        )

    def _node(
        self, stack: ExitStack, number: int, ports: tuple[int, int] | None = None
    ) -> Node:
        again = "-again" if ports else ""
        return self.launcher.node(
            stack,
            f"{self.setting.file_name}-prefill-{number}{again}",
            self.setting.prefill,
            Role.PREFILL,
            transports=_TRANSPORTS,
            ports=ports,
        )

    def _kill(self, prefill: Node, decode: Node) -> Iterator[str]:
        """Kill a server in the middle of a transfer; yield what is wrong then."""
        params = prefilled(prefill, self.victim)
        decode.probe.take_lines()
        os.killpg(prefill.server.process.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(send, decode.server, self.victim, params)
            if not _posted(decode):
                yield "no transfer was under way when the server was killed"
            os.killpg(prefill.server.process.pid, signal.SIGKILL)
            yield from self._answer_problems(answer)

    def _answer_problems(self, answer: Future[Tokens]) -> Iterator[str]:
        """Yield what is wrong with an answer; an error is none, a wrong token is."""
        try:
            tokens = answer.result(_ANSWER_S)
        except ToolError:
            return
        except TimeoutError:
            yield "a request of a killed server was not answered"
            return
        for problem in wrong_tokens([self.victim], [tokens], self.expected):
            yield f"after the kill, {problem}"

    def _survivor(self, pair: Pair) -> Iterator[str]:
        """Yield what is wrong while one of two servers is dead."""
        answered = 0
        for ask in self.asks:
            try:
                tokens = send(pair.proxy, ask)
            except ToolError:
                continue  # the proxy asks the dead one, too
            answered += 1
            for problem in wrong_tokens([ask], [tokens], self.expected):
                yield f"one server dead, {problem}"
        if answered < len(self.asks) // 2:
            yield f"the survivor answered {answered} of {len(self.asks)} requests"
        for node, share in zip(pair.nodes, pair.settle(), strict=True):
            if share:
                yield f"one server dead, {node.name}: {share:.1%} did not come back"


def prefilled(node: Node, ask: Ask) -> dict[str, Any]:
    """Let a server prefill a prompt, as the proxy does; return what names its blocks.

    Raises:
        ToolError: It refused.
    """
    answer = node.server.post(
        "/v1/completions",
        {
            "model": model.NAME,
            "prompt": list(ask.prompt),
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
            "kv_transfer_params": {"do_remote_decode": True},
        },
    )
    params: dict[str, Any] = answer["kv_transfer_params"]
    return params


def _posted(decode: Node) -> bool:
    """Wait until the decode side has posted a transfer; return whether it has."""
    deadline = time.monotonic() + _POST_S
    while time.monotonic() < deadline:
        if any("both" in line for line in decode.probe.take_lines()):
            return True
        time.sleep(_POLL_S)
    return False


def _unused(pair: Pair, phase: Phase) -> Iterator[str]:
    names = {node.name for node in pair.prefills}
    for side in phase.sides:
        if side.name in names and not side.records.uses():
            yield f"{phase.name}: {side.name} was asked nothing"
