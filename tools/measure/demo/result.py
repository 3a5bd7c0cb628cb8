"""The demo's verdict on all scenarios of all pairs of servers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from tools.base.outcome import Outcome
from tools.measure.demo.comparison import ScenarioComparison
from tools.measure.demo.scenarios import (
    BATCHED_TOKENS,
    BLOCK_SIZE,
    BLOCKS,
    MODEL_TOKENS,
)

_CAPTION = """\
{settings}
ranges: contiguous stretches in which a request held its blocks when it gave
them back, mean (most); counted in the same way for both
loaded: prompt tokens that came from a KV connector
block copies: blocks that tagma's workers copied since they were moved
tokens/s: generated tokens over the time of the scenario; under Triton's
interpreter they say nothing about a GPU"""


@dataclass(frozen=True)
class PairResult:
    """What a server of each backend did.

    Args:
        name: The pair's, empty for the first.
        start_s: How long each server took to start.
        comparisons: Every scenario.
        unobserved: What the servers should have told their operators.
    """

    name: str
    start_s: Mapping[str, float]
    comparisons: tuple[ScenarioComparison, ...]
    unobserved: tuple[str, ...] = ()

    @property
    def block_copies(self) -> int:
        """Blocks that tagma copied in all scenarios."""
        return sum(c.tagma.block_copies for c in self.comparisons)

    @property
    def copies_ahead(self) -> int:
        """Those of them that were copied with another step under way."""
        return sum(c.tagma.copies_ahead for c in self.comparisons)

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that makes the demo fail, with the pair's name before it."""
        prefix = f"{self.name}: " if self.name else ""
        found = [p for c in self.comparisons for p in c.problems]
        found += (*self._unmoved(), *self.unobserved)
        return tuple(prefix + problem for problem in found)

    @property
    def copied(self) -> str:
        """How much moved, for people."""
        return (
            f"{self.name or 'one worker'}: {self.block_copies} blocks copied, "
            f"{self.copies_ahead} of them with another step under way"
        )

    def _unmoved(self) -> Iterator[str]:
        steps = [s for c in self.comparisons for s in c.tagma.recorded.steps]
        sent = sum(step.copies for step in steps)
        if sent != self.block_copies:
            yield f"/metrics counts {self.block_copies} copies, workers got {sent}"
        if not self.block_copies:
            yield "tagma copied no block in any scenario"
        elif not self.copies_ahead:
            yield "no block was copied while another step was under way"

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "name": self.name,
            "start_s": {name: round(s, 1) for name, s in self.start_s.items()},
            "block_copies": self.block_copies,
            "copies_ahead": self.copies_ahead,
            "problems": list(self.problems),
            "scenarios": [comparison.to_data() for comparison in self.comparisons],
        }


@dataclass(frozen=True)
class DemoResult:
    """The end of a demo.

    Args:
        pairs: What each pair of servers did.
        not_run: Pairs that this host cannot run, and why.
    """

    pairs: tuple[PairResult, ...]
    not_run: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that makes the demo fail."""
        return tuple(problem for pair in self.pairs for problem in pair.problems)

    @property
    def outcome(self) -> Outcome:
        """DONE, or DIFFERENT at any problem."""
        return Outcome.DIFFERENT if self.problems else Outcome.DONE

    @property
    def settings(self) -> dict[str, Any]:
        """The options that all servers have in common."""
        return {
            "block_size": BLOCK_SIZE,
            "blocks": BLOCKS,
            "max_model_len": MODEL_TOKENS,
            "max_num_batched_tokens": BATCHED_TOKENS,
            "async_scheduling": True,
        }

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "settings": self.settings,
            "pairs": [pair.to_data() for pair in self.pairs],
            "not_run": list(self.not_run),
        }

    def table(self) -> Table:
        """Return the table for people; pairs are paged / tagma."""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        table = Table(
            box=box.SIMPLE_HEAD,
            title="paged / tagma",
            caption=_CAPTION.format(settings=settings),
            caption_justify="left",
        )
        table.add_column("scenario")
        table.add_column("tokens")
        for name in (
            *("at once", "prefix hits", "loaded", "preemptions", "block copies"),
            *("ranges", "tokens/s"),
        ):
            table.add_column(name, justify="right")
        for pair in self.pairs:
            if pair.name:
                table.add_section()
                table.add_row(f"[i]{pair.name}[/i]")
            for comparison in pair.comparisons:
                table.add_row(*_row(comparison))
        return table


def _row(comparison: ScenarioComparison) -> tuple[str, ...]:
    paged, tagma = comparison.paged, comparison.tagma
    return (
        comparison.scenario.name,
        "DIFFERENT" if comparison.differences else "equal",
        f"{paged.most_at_once} / {tagma.most_at_once}",
        f"{paged.cached_tokens} / {tagma.cached_tokens}",
        f"{paged.loaded_tokens} / {tagma.loaded_tokens}",
        f"{paged.preemptions} / {tagma.preemptions}",
        f"{paged.block_copies} / {tagma.block_copies}",
        f"{paged.mean_runs:.1f} ({paged.max_runs}) / "
        f"{tagma.mean_runs:.1f} ({tagma.max_runs})",
        f"{paged.tokens_per_s:.1f} / {tagma.tokens_per_s:.1f}",
    )
