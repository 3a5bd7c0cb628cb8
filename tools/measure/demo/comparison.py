"""Both backends compared: each scenario, and the demo's verdict on all of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from tools.base.outcome import Outcome
from tools.measure.demo.measured import Measured
from tools.measure.demo.scenarios import (
    BATCHED_TOKENS,
    BLOCK_SIZE,
    BLOCKS,
    MODEL_TOKENS,
    Claim,
    Scenario,
)


@dataclass(frozen=True)
class ScenarioComparison:
    """One scenario on both backends."""

    scenario: Scenario
    paged: Measured
    tagma: Measured

    @property
    def differences(self) -> tuple[str, ...]:
        """For each request whose tokens differ: where, and both tokens."""
        found = []
        pairs = zip(self.paged.replies, self.tagma.replies, strict=True)
        for number, (paged, tagma) in enumerate(pairs, 1):
            at = _first_difference(paged.tokens, tagma.tokens)
            if at is not None:
                found.append(
                    f"{self.scenario.name}, request {number}, token {at + 1}: "
                    f"paged {_at(paged.tokens, at)}, tagma {_at(tagma.tokens, at)}"
                )
        return tuple(found)

    @property
    def unmet(self) -> tuple[str, ...]:
        """What should have happened and did not."""
        return tuple(
            f"{self.scenario.name}, {name}: {problem}"
            for name, measured in (("paged", self.paged), ("tagma", self.tagma))
            for problem in _unmet(self.scenario, measured)
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that makes this comparison fail."""
        return self.differences + self.unmet

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "scenario": self.scenario.name,
            "claim": self.scenario.claim.value if self.scenario.claim else None,
            "requests": len(self.scenario.prompts),
            "max_tokens": self.scenario.max_tokens,
            "tokens_equal": not self.differences,
            "problems": list(self.problems),
            "paged": self.paged.to_data(),
            "tagma": self.tagma.to_data(),
        }


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def _at(tokens: Sequence[int], index: int) -> str:
    return str(tokens[index]) if index < len(tokens) else "(ended)"


def _unmet(scenario: Scenario, measured: Measured) -> Iterator[str]:
    for number, reply in enumerate(measured.replies, 1):
        # A grammar ends where it is fulfilled.
        ends_early = "structured_outputs" in scenario.sampling and reply.tokens
        if len(reply.tokens) != scenario.max_tokens and not ends_early:
            yield f"request {number} gave {len(reply.tokens)} tokens"
    if len(measured.held) < len(measured.replies):
        yield f"only {len(measured.held)} releases of blocks were recorded"
    match scenario.claim:
        case Claim.CHUNKED:
            if any(r.prompt_tokens <= BATCHED_TOKENS for r in measured.replies):
                yield f"a prompt fits into one batch of {BATCHED_TOKENS} tokens"
            if measured.cached_tokens:
                yield f"{measured.cached_tokens} tokens came from the prefix cache"
        case Claim.PREFIX_HIT:
            if not measured.cached_tokens:
                yield "no token came from the prefix cache"
        case Claim.CONCURRENT:
            if measured.most_at_once < 2:
                yield "the streams ran one after the other"
        case Claim.PREEMPTED:
            if not measured.preemptions:
                yield "no request was preempted"
        case None:
            pass


@dataclass(frozen=True)
class DemoResult:
    """The end of a demo.

    Args:
        start_s: How long each server took to start.
        comparisons: Every scenario.
        unobserved: What the servers should have told their operators.
    """

    start_s: Mapping[str, float]
    comparisons: tuple[ScenarioComparison, ...]
    unobserved: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that makes the demo fail."""
        compared = tuple(p for c in self.comparisons for p in c.problems)
        return compared + self.unobserved

    @property
    def outcome(self) -> Outcome:
        """DONE, or DIFFERENT at any problem."""
        return Outcome.DIFFERENT if self.problems else Outcome.DONE

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "settings": {
                "block_size": BLOCK_SIZE,
                "blocks": BLOCKS,
                "max_model_len": MODEL_TOKENS,
                "max_num_batched_tokens": BATCHED_TOKENS,
            },
            "start_s": {name: round(s, 1) for name, s in self.start_s.items()},
            "scenarios": [comparison.to_data() for comparison in self.comparisons],
        }

    def table(self) -> Table:
        """Return the table for people; pairs are paged / tagma."""
        table = Table(
            box=box.SIMPLE_HEAD,
            title="paged / tagma",
            caption="ranges: contiguous stretches in which a request held its blocks "
            "when it gave\nthem back, mean (most); counted in the same way for both\n"
            "tokens/s: generated tokens over the time of the scenario; under Triton's\n"
            "interpreter they say nothing about a GPU",
            caption_justify="left",
        )
        table.add_column("scenario")
        table.add_column("tokens")
        for name in ("at once", "prefix hits", "preemptions", "ranges", "tokens/s"):
            table.add_column(name, justify="right")
        for comparison in self.comparisons:
            paged, tagma = comparison.paged, comparison.tagma
            table.add_row(
                comparison.scenario.name,
                "DIFFERENT" if comparison.differences else "equal",
                f"{paged.most_at_once} / {tagma.most_at_once}",
                f"{paged.cached_tokens} / {tagma.cached_tokens}",
                f"{paged.preemptions} / {tagma.preemptions}",
                f"{paged.mean_runs:.1f} ({paged.max_runs}) / "
                f"{tagma.mean_runs:.1f} ({tagma.max_runs})",
                f"{paged.tokens_per_s:.1f} / {tagma.tokens_per_s:.1f}",
            )
        return table
