"""Both backends compared in one scenario."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tools.measure.demo.measured import Measured
from tools.measure.demo.scenarios import BATCHED_TOKENS, Claim, Scenario


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
        found = [
            f"{name}: {problem}"
            for name, measured in (("paged", self.paged), ("tagma", self.tagma))
            for problem in _unmet(self.scenario, measured)
        ]
        found += (f"tagma: {p}" for p in _unmoved(self.scenario.claim, self.tagma))
        if self.scenario.is_determined:
            found += self._decided_otherwise()
        return tuple(f"{self.scenario.name}, {problem}" for problem in found)

    def _decided_otherwise(self) -> Iterator[str]:
        """Yield what is cached or preempted in another way where time plays no part."""
        paged, tagma = (
            [reply.cached_tokens for reply in measured.replies]
            for measured in (self.paged, self.tagma)
        )
        if paged != tagma:
            yield f"prefix hits: paged {paged}, tagma {tagma}"
        if self.paged.loaded_tokens != self.tagma.loaded_tokens:
            yield (
                f"loaded tokens: paged {self.paged.loaded_tokens}, "
                f"tagma {self.tagma.loaded_tokens}"
            )
        if self.paged.preemptions != self.tagma.preemptions:
            yield (
                f"preemptions: paged {self.paged.preemptions}, "
                f"tagma {self.tagma.preemptions}"
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
            "in_turn": self.scenario.in_turn,
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
    if scenario.in_turn and measured.most_at_once > 1:
        yield "requests ran at once"
    match scenario.claim:
        case Claim.CHUNKED:
            if any(r.prompt_tokens <= BATCHED_TOKENS for r in measured.replies):
                yield f"a prompt fits into one batch of {BATCHED_TOKENS} tokens"
            if measured.cached_tokens:
                yield f"{measured.cached_tokens} tokens came from the prefix cache"
        case Claim.PREFIX_HIT | Claim.GATHERED:
            for number, reply in enumerate(measured.replies, 1):
                if not reply.cached_tokens:
                    yield f"request {number} found nothing in the prefix cache"
        case Claim.CONCURRENT:
            if measured.most_at_once < 2:
                yield "the streams ran one after the other"
        case Claim.PREEMPTED:
            if not measured.preemptions:
                yield "no request was preempted"
        case Claim.LOADED:
            if not measured.loaded_tokens:
                yield "no token was loaded"
        case Claim.MOVED | Claim.SHARED | None:
            pass


def _unmoved(claim: Claim | None, tagma: Measured) -> Iterator[str]:
    """Yield what the claim says of moves and tagma did not show."""
    match claim:
        case Claim.MOVED | Claim.GATHERED | Claim.PREEMPTED if not tagma.block_copies:
            yield "no block was copied"
        case Claim.MOVED | Claim.GATHERED if tagma.max_runs > 1:
            yield f"a request held its blocks in {tagma.max_runs} ranges"
        case Claim.SHARED if tagma.max_runs < 2:
            yield "no request extended the prefix elsewhere"
