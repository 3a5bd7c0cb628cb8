"""The verdict: tokens, loads and blocks of all settings."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table

from tools.base.outcome import Outcome
from tools.measure.greedy import Tokens, wrong_tokens
from tools.measure.lmcache.node import Counts
from tools.measure.lmcache.setting import PAGED, TAGMA, Setting
from tools.measure.lmcache.workload import Round


@dataclass(frozen=True)
class RoundResult:
    """What a round gave.

    Args:
        round: The requests.
        answers: Their tokens.
        counts: What the server counted meanwhile.
        held: The share of its blocks that did not come back.
    """

    round: Round
    answers: tuple[Tokens, ...]
    counts: Counts
    held: float

    def to_data(self) -> dict[str, Any]:
        """Return what was measured, for JSON."""
        return {
            "round": self.round.name,
            "requests": len(self.answers),
            **asdict(self.counts),
            "held": self.held,
        }


@dataclass(frozen=True)
class SettingResult:
    """All rounds of a setting."""

    setting: Setting
    rounds: tuple[RoundResult, ...]

    @property
    def serial(self) -> tuple[RoundResult, ...]:
        """The rounds whose loads do not depend on time."""
        return tuple(each for each in self.rounds if each.round.is_serial)

    def loaded(self) -> int:
        """Return how many tokens were found in LMCache."""
        return sum(each.counts.loaded for each in self.rounds)

    def problems(self, alone: "SettingResult") -> Iterator[str]:
        """Yield what is wrong, compared with a server without LMCache."""
        wrong = list(self._wrong_tokens(alone))
        if self.setting.is_control:
            if not wrong:
                yield "loads into wrong blocks do not show in any token"
            return
        yield from wrong
        for each in self.rounds:
            if each.held:
                yield f"{each.round.name}: {each.held:.1%} of the blocks are held"
        crowded = [each for each in self.rounds if not each.round.is_serial]
        if crowded and not any(each.counts.preemptions for each in crowded):
            yield "nothing was preempted"
        if self.setting.uses_lmcache and not self.loaded():
            yield "nothing was loaded from LMCache"

    def _wrong_tokens(self, alone: "SettingResult") -> Iterator[str]:
        expected = {each.round.name: each for each in alone.rounds}
        for each in self.rounds:
            asks = each.round.asks
            answers = dict(zip(asks, expected[each.round.name].answers, strict=True))
            for problem in wrong_tokens(asks, each.answers, answers):
                yield f"{each.round.name}, {problem}"


@dataclass(frozen=True)
class LMCacheResult:
    """All settings, the one without LMCache first."""

    alone: SettingResult
    others: Sequence[SettingResult]

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that makes the demo fail."""
        found = [
            f"{each.setting.name}: {problem}"
            for each in (self.alone, *self.others)
            for problem in each.problems(self.alone)
        ]
        return (*found, *self._different_loads())

    def _different_loads(self) -> Iterator[str]:
        """Yield the rounds in which tagma does not load what paged loads."""
        of = {each.setting.name: each for each in self.others}
        for paged, tagma in zip(
            of[PAGED.name].serial, of[TAGMA.name].serial, strict=True
        ):
            wanted, found = paged.counts, tagma.counts
            if (wanted.local, wanted.loaded) != (found.local, found.loaded):
                yield (
                    f"{paged.round.name}: paged found {wanted.local} tokens itself and "
                    f"{wanted.loaded} in LMCache, tagma {found.local} and "
                    f"{found.loaded}"
                )

    @property
    def outcome(self) -> Outcome:
        """DONE, or DIFFERENT at any problem."""
        return Outcome.DIFFERENT if self.problems else Outcome.DONE

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "problems": list(self.problems),
            "settings": {
                each.setting.name: [result.to_data() for result in each.rounds]
                for each in (self.alone, *self.others)
            },
        }

    def table(self) -> Table:
        """Return the table for people: a row for each setting."""
        table = Table(
            box=box.SIMPLE_HEAD,
            title="prompt tokens found in the server's prefix cache and in LMCache",
            caption="serial: one request at a time; crowded: several, some preempted "
            "or aborted",
            caption_justify="left",
        )
        table.add_column("setting")
        for name in (
            *("serial, own", "serial, LMCache", "crowded, own", "crowded, LMCache"),
            "preempted",
        ):
            table.add_column(name, justify="right")
        for each in (self.alone, *self.others):
            table.add_row(each.setting.name, *_cells(each))
        return table


def _cells(result: SettingResult) -> Iterator[str]:
    for is_serial in (True, False):
        counts = [r.counts for r in result.rounds if r.round.is_serial == is_serial]
        yield f"{sum(c.local for c in counts)}"
        yield f"{sum(c.loaded for c in counts)}"
    yield f"{sum(each.counts.preemptions for each in result.rounds)}"
