"""The run of `demo-lmcache`: the same rounds with every setting."""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.measure.greedy import send_all
from tools.measure.lmcache.node import Launcher, Node
from tools.measure.lmcache.result import LMCacheResult, RoundResult, SettingResult
from tools.measure.lmcache.setting import (
    ALONE,
    CONTROL,
    FURTHER,
    PAGED,
    TAGMA,
    Setting,
)
from tools.measure.lmcache.workload import Round, make_rounds


@dataclass(frozen=True)
class LMCacheDemo:
    """Asks servers the same.

    Args:
        launcher: Starts them.
        quick: Without the further settings of LMCache.
    """

    launcher: Launcher
    quick: bool = False

    def run(self) -> LMCacheResult:
        """Run every setting.

        Raises:
            ToolError: A server failed, or runs another backend.
        """
        rounds = make_rounds()
        serial = [each for each in rounds if each.is_serial]
        further = () if self.quick else FURTHER
        results = [
            self._setting(setting, rounds)
            for setting in (ALONE, PAGED, TAGMA, *further)
        ]
        control = self._setting(CONTROL, serial)
        return LMCacheResult(results[0], (*results[1:], control))

    def _setting(self, setting: Setting, rounds: Sequence[Round]) -> SettingResult:
        with self.launcher.node(setting) as node:
            return SettingResult(setting, tuple(ask(node, each) for each in rounds))


def ask(node: Node, what: Round) -> RoundResult:
    """Send the requests of a round and wait until the server rests."""
    if what.resets:
        node.reset()
    before = node.counts()
    answers = send_all(node.server, what.asks, what.at_once, what.name)
    held = node.settle()
    return RoundResult(what, answers, node.counts() - before, held)
