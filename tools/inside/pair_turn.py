"""A request of a prefill and a decode pool, and what is transferred for it."""

from dataclasses import dataclass, field
from itertools import pairwise

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

BLOCK_SIZE = 16
MAX_TOKENS = 1 << 18


@dataclass(eq=False)
class Turn:
    """A request, on both sides.

    Args:
        number: Counts from zero.
        prompt: Tokens.
        output: Tokens.
        contents: The numbers of its full blocks' contents, in runs: the first one
            and how many.
    """

    number: int
    prompt: int
    output: int
    contents: list[tuple[int, int]]
    prefill: Request = field(init=False)
    decode: Request = field(init=False)
    decoded: int = 0

    @property
    def num_blocks(self) -> int:
        """Blocks of its prompt."""
        return -(-self.prompt // BLOCK_SIZE)

    def request(self, side: str) -> Request:
        """Return it as one side gets it."""
        hashes = [
            (first + index).to_bytes(32, "big", signed=True)
            for first, count in self.contents
            for index in range(count)
        ]

        def hash_blocks(request: Request) -> list[bytes]:
            begin, end = len(request.block_hashes), request.num_tokens // BLOCK_SIZE
            return hashes[begin:end]

        return Request(
            request_id=f"{side}-{self.number}",
            prompt_token_ids=[1] * self.prompt,
            sampling_params=SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
            pooling_params=None,
            block_hasher=hash_blocks,
        )


@dataclass(frozen=True)
class Transfer:
    """Blocks that go from one side to the other, in the order of their tokens."""

    number: int
    sources: list[int]
    targets: list[int]

    def runs(self) -> list[tuple[int, int, int]]:
        """Return the runs that are contiguous on both sides."""
        runs: list[tuple[int, int, int]] = []
        for source, target in zip(self.sources, self.targets, strict=True):
            if runs:
                first, to, count = runs[-1]
                if (source, target) == (first + count, to + count):
                    runs[-1] = (first, to, count + 1)
                    continue
            runs.append((source, target, 1))
        return runs

    def counts(self) -> tuple[int, int, int, int, int]:
        """Return its number, blocks, and runs: sources, targets, both."""
        blocks, runs = len(self.sources), len(self.runs())
        sides = (_num_runs(self.sources), _num_runs(self.targets))
        return (self.number, blocks, *sides, runs)


def _num_runs(ids: list[int]) -> int:
    breaks = sum(after != before + 1 for before, after in pairwise(ids))
    return breaks + 1 if ids else 0
