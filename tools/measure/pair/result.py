"""The verdict on all rounds: what is wrong, and how many descriptors each needed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.table import Table

from tools.base.outcome import Outcome
from tools.measure.pair.connector import Connector
from tools.measure.pair.counters import Counters
from tools.measure.pair.phase import Phase
from tools.measure.pair.records import mean

# How many times more descriptors a transfer of paged needs after ageing, at least.
LEAST_RATIO = 10.0
# A pool has aged when most of its blocks have been held several times.
AGED_SHARE, AGED_USES = 0.5, 3

AGEING = "ageing"


@dataclass(frozen=True)
class Setting:
    """What a pair runs.

    Args:
        prefill: The backend that prefills.
        decode: The backend that decodes.
        connector: The class that moves blocks.
        prefills: How many servers prefill.
    """

    prefill: str
    decode: str
    connector: Connector = Connector.NIXL
    prefills: int = 1

    @property
    def name(self) -> str:
        """What to call it."""
        many = f"{self.prefills} " if self.prefills > 1 else ""
        return f"{many}{self.prefill} → {self.decode}{self.connector.label}"

    @property
    def file_name(self) -> str:
        """The same for names of files."""
        name = self.name.replace(" → ", "-").replace(", ", "-").replace(" ", "-")
        return name.lower()


@dataclass(frozen=True)
class Round:
    """One setting and what was measured of it.

    Args:
        setting: What the pair ran.
        phases: The phases, in order.
        problems: What was wrong in them.
        aged: For each server the share of blocks that had been held often enough,
            if the round was to age its pools.
    """

    setting: Setting
    phases: tuple[Phase, ...]
    problems: tuple[str, ...]
    aged: dict[str, float] = field(default_factory=dict)

    @property
    def after_ageing(self) -> tuple[Phase, ...]:
        """The phases whose transfers count."""
        return tuple(phase for phase in self.phases if phase.name != AGEING)

    @property
    def counters(self) -> Counters:
        """The counts after ageing."""
        return sum((phase.counters for phase in self.after_ageing), Counters())

    @property
    def descriptors(self) -> float:
        """Mean of descriptors a transfer, after ageing."""
        return self.counters.each(self.counters.descriptors)

    @property
    def all_problems(self) -> Iterator[str]:
        """What was wrong, with the setting's name, and pools that are too young."""
        for problem in self.problems:
            yield f"{self.setting.name}: {problem}"
        for name, share in self.aged.items():
            if share < AGED_SHARE:
                yield (
                    f"{self.setting.name}: only {share:.0%} of the blocks of {name} "
                    f"were held {AGED_USES} times"
                )

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "setting": self.setting.name,
            "connector": self.setting.connector.value,
            "aged": {name: round(share, 3) for name, share in self.aged.items()},
            "descriptors_per_transfer": round(self.descriptors, 2),
            "problems": list(self.all_problems),
            "phases": {phase.name: phase.to_data() for phase in self.phases},
        }


@dataclass(frozen=True)
class PairResult:
    """All rounds, those of both backends with themselves first."""

    rounds: tuple[Round, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Paged's mean of descriptors a transfer after ageing over tagma's."""
        paged, tagma = (self._of(name).descriptors for name in ("paged", "tagma"))
        return paged / tagma if tagma else 0.0

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that makes the demo fail."""
        found = [problem for each in self.rounds for problem in each.all_problems]
        if self.ratio < LEAST_RATIO:
            found.append(
                f"paged needs {self.ratio:.1f} times tagma's descriptors, less than "
                f"{LEAST_RATIO:.0f} times"
            )
        return tuple(found)

    @property
    def outcome(self) -> Outcome:
        """DONE, or DIFFERENT at any problem."""
        return Outcome.DIFFERENT if self.problems else Outcome.DONE

    def _of(self, backend: str) -> Round:
        return next(r for r in self.rounds if r.setting == Setting(backend, backend))

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "settings": self.settings,
            "ratio_of_descriptors": round(self.ratio, 2),
            "problems": list(self.problems),
            "rounds": [each.to_data() for each in self.rounds],
        }

    def table(self) -> Table:
        """Return the table for people: a row for each phase."""
        table = Table(
            box=box.SIMPLE_HEAD,
            title="prefill → decode, means of a transfer",
            caption="runs: contiguous stretches on the prefill side, the decode side, "
            "and both at once;\nlive: share of the pools held when requests ended; "
            "prefix hits and live: prefill / decode;\ntimes are of this host's shared "
            "memory and say nothing about a network",
            caption_justify="left",
        )
        table.add_column("backends")
        table.add_column("phase")
        for name in (
            *("transfers", "blocks", "MiB", "runs", "descriptors", "post ms"),
            *("transfer ms", "prefix hits", "failed", "live"),
        ):
            table.add_column(name, justify="right")
        for each in self.rounds:
            for phase in each.phases:
                table.add_row(each.setting.name, phase.name, *_cells(phase))
        return table


def _cells(phase: Phase) -> Iterator[str]:
    counts, transfers = phase.counters, phase.transfers

    def of(name: str) -> float:
        return mean(getattr(transfer, name) for transfer in transfers)

    yield f"{counts.transfers:.0f}"
    yield f"{of('blocks'):.1f}"
    yield f"{counts.each(counts.bytes) / 2**20:.2f}"
    yield f"{of('prefill'):.1f}, {of('decode'):.1f}, {of('both'):.1f}"
    yield f"{counts.each(counts.descriptors):.1f}"
    yield f"{1e3 * counts.each(counts.post_s):.1f}"
    yield f"{1e3 * counts.each(counts.transfer_s):.1f}"
    yield " / ".join(f"{side.counters.prefix_hits:.0f}" for side in phase.sides)
    yield f"{counts.failed:.0f}"
    yield " / ".join(f"{mean(side.records.held_shares):.0%}" for side in phase.sides)
