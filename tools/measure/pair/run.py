"""The run of `demo-pd`: a single server first, then a pair for each setting.

Everything shown was measured on these servers. A token that differs from the single
server's fails the demo, as do failed transfers and blocks that do not come back.
"""

import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

from tools.measure.greedy import Ask, Tokens, send_all
from tools.measure.pair.connector import LEASE_S, Connector, Role
from tools.measure.pair.node import Launcher
from tools.measure.pair.outage import Outage
from tools.measure.pair.pair import Pair
from tools.measure.pair.phase import Phase
from tools.measure.pair.result import AGED_USES, AGEING, PairResult, Round, Setting
from tools.measure.pair.workload import (
    BLOCK_SIZE,
    PROBES,
    SEED,
    Size,
    Workload,
    make_workload,
    tokens_needed,
)
from tools.serve import model
from tools.serve.server import Server

BACKENDS = ("paged", "tagma")
OTHERS = (
    Setting("tagma", "paged"),
    Setting("paged", "tagma"),
    Setting("paged", "paged", Connector.NIXL_PUSH),
    Setting("tagma", "tagma", Connector.NIXL_PUSH),
    Setting("paged", "paged", Connector.MOONCAKE),
    Setting("tagma", "tagma", Connector.MOONCAKE),
)

_PIECE = 200_000  # characters that are tokenized at once


@dataclass(frozen=True)
class PairDemo:
    """Runs the workload on pairs of servers.

    Args:
        launcher: Starts them.
        size: How much is asked.
        quick: Only each backend with itself.
    """

    launcher: Launcher
    size: Size
    quick: bool = False

    def run(self) -> PairResult:
        """Run every setting and compare it with a single server.

        Raises:
            ToolError: A server failed, or runs another backend.
        """
        workload, expected = self._single()
        rounds = [
            self._round(Setting(backend, backend), workload, expected)
            for backend in BACKENDS
        ]
        if not self.quick:
            short = workload.short()
            rounds += [self._round(each, short, expected) for each in OTHERS]
            rounds += [self._outage(backend, short, expected) for backend in BACKENDS]
        return PairResult(tuple(rounds), self._settings())

    def _settings(self) -> dict[str, int | list[int]]:
        return {
            "seed": SEED,
            "block_size": BLOCK_SIZE,
            "blocks": self.size.blocks,
            "conversations": self.size.conversations,
            "turns": self.size.turns,
            "requests_at_once": self.size.at_once,
            "probes": list(PROBES),
            "kv_lease_duration": LEASE_S,
        }

    def _single(self) -> tuple[Workload, dict[Ask, Tokens]]:
        """Return the workload and what a single paged server answers."""
        with ExitStack() as stack:
            node = self.launcher.node(stack, "alone", "paged", Role.ALONE)
            node.wait_ready()
            text = self._text(node.server)
            workload = make_workload(text, self.size)
            asks = workload.asks
            answers = send_all(node.server, asks, self.size.at_once, "all requests")
            return workload, dict(zip(asks, answers, strict=True))

    def _text(self, server: Server) -> list[int]:
        pages = model.documents(self.launcher.tree)
        random.Random(SEED).shuffle(pages)
        text = "".join(page.read_text("utf-8") for page in pages)
        tokens: list[int] = []
        for at in range(0, len(text), _PIECE):
            if len(tokens) >= tokens_needed(self.size):
                break
            tokens += model.tokenize(server, text[at : at + _PIECE])
        return tokens

    def _round(
        self, setting: Setting, workload: Workload, expected: dict[Ask, Tokens]
    ) -> Round:
        """Age a pair's pools, then measure it under load and with probes."""
        at_once, probes = self.size.at_once, workload.probes
        with ExitStack() as stack:
            pair = self._pair(stack, setting)
            phases = [
                pair.phase(name, asks, at_once)
                for name, asks in ((AGEING, workload.ageing), ("load", workload.load))
                if asks
            ]
            for length in PROBES:
                asks = [ask for ask in probes if len(ask.prompt) == length]
                phases.append(pair.phase(f"{length:,} tokens", asks, 1))
        problems = tuple(p for phase in phases for p in phase.problems(expected))
        aged = self._aged(phases[0]) if workload.ageing else {}
        return Round(setting, tuple(phases), problems, aged)

    def _outage(
        self, backend: str, workload: Workload, expected: dict[Ask, Tokens]
    ) -> Round:
        setting = Setting(backend, backend, prefills=2)
        return Outage(
            self.launcher,
            setting,
            workload.load[: 2 * self.size.at_once],
            workload.probes[-1],
            expected,
            self.size.at_once,
        ).run()

    def _aged(self, ageing: Phase) -> dict[str, float]:
        """Return for each server the share of its blocks that were held often."""
        often = {
            side.name: Counter(
                uses >= AGED_USES for uses in side.records.uses().values()
            )
            for side in ageing.sides
        }
        usable = self.size.blocks - 1  # one is the null block
        return {name: counts[True] / usable for name, counts in often.items()}

    def _pair(self, stack: ExitStack, setting: Setting) -> Pair:
        name = setting.file_name
        prefill = self.launcher.node(
            stack,
            f"{name}-prefill",
            setting.prefill,
            Role.PREFILL,
            connector=setting.connector,
        )
        decode = self.launcher.node(
            stack,
            f"{name}-decode",
            setting.decode,
            Role.DECODE,
            connector=setting.connector,
        )
        for node in (prefill, decode):
            node.wait_ready()
        proxy = self.launcher.proxy(stack, name, setting.connector, [prefill], decode)
        return Pair((prefill,), decode, proxy)
