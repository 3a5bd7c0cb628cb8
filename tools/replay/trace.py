"""Recorded request traces: Mooncake's JSON lines and Azure's tables."""

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TextIO

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.replay.request import Request

POOL_REQUESTS = 340  # whose mean size makes the usual pool; Mooncake's is 4M tokens
_HASH_TOKENS = 512  # what one of Mooncake's hash ids stands for
_OUTPUT_BLOCKS = 1 << 32  # no output has more


@dataclass(frozen=True)
class Trace:
    """A recorded sequence of requests.

    Args:
        name: What to call it.
        records: Length of the prompt, of the output, and the hash ids of the
            prompt; there are none without a record of contents.
    """

    name: str
    records: tuple[tuple[int, int, tuple[int, ...]], ...]

    @property
    def has_contents(self) -> bool:
        """Whether prompts can be found in a prefix cache."""
        return any(ids for _, _, ids in self.records)

    @cached_property
    def most_tokens(self) -> int:
        """Tokens of the longest request."""
        return max(prompt + output for prompt, output, _ in self.records)

    @cached_property
    def prompt_tokens(self) -> float:
        """Mean length of the prompts."""
        return sum(prompt for prompt, _, _ in self.records) / len(self.records)

    @cached_property
    def output_tokens(self) -> float:
        """Mean length of the outputs."""
        return sum(output for _, output, _ in self.records) / len(self.records)

    @property
    def pool_tokens(self) -> int:
        """Size of the usual pool: some prompts are found in it, and some are not."""
        usual = int(POOL_REQUESTS * (self.prompt_tokens + self.output_tokens))
        return max(usual, self.most_tokens)

    @classmethod
    def read(cls, path: Path, limit: int | None = None) -> "Trace":
        """Read a trace, whose kind is seen from its file's suffix.

        Args:
            path: The file.
            limit: Leave it at that many requests.

        Raises:
            ToolError: It is absent, or not a trace of a known kind.
        """
        readers: dict[str, Callable[[TextIO], Iterable[_Record]]] = {
            ".jsonl": _read_mooncake,
            ".csv": _read_azure,
        }
        reader = readers.get(path.suffix)
        if reader is None:
            raise _unreadable(path, f"{path.suffix or 'no suffix'} is no known kind")
        try:
            with path.open(encoding="utf-8", newline="") as file:
                records = tuple(reader(file))
        except FileNotFoundError as error:
            raise ToolError(
                Outcome.BAD_TRACE,
                f"there is no trace at {path}",
                ("Name one: python -m tools replay --trace PATH",),
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _unreadable(path, repr(error)) from error
        records = tuple(r for r in records if r[0] > 0 and r[1] > 0)[:limit]
        if not records:
            raise _unreadable(path, "it has no request")
        return cls(path.stem, records)


_Record = tuple[int, int, tuple[int, ...]]


class Replay:
    """The requests of a trace, in order, each as soon as there is room.

    Arrival times are left out, so that the live share is what the setting says
    and not what the recorded load was.

    Args:
        trace: The requests.
        block_size: Tokens per block.
    """

    def __init__(self, trace: Trace, block_size: int) -> None:
        self._records = trace.records
        self._block_size = block_size
        self._next = 0

    @property
    def ended(self) -> bool:
        """Whether all requests have been given."""
        return self._next == len(self._records)

    def next(self, step: int) -> Request | None:
        """Return the next request."""
        if self.ended:
            return None
        number = self._next
        self._next += 1
        prompt, output, ids = self._records[number]
        request = Request(prompt, output, session=number)
        return replace(request, hashes=self._hashes(request, ids)) if ids else request

    def finished(self, request: Request, step: int) -> None:
        """Requests of a trace do not wait for each other."""

    def _hashes(self, request: Request, ids: Sequence[int]) -> Sequence[int]:
        per_id = _HASH_TOKENS // self._block_size
        hashes: list[int] = []
        for number in ids:
            hashes += range(number * per_id, (number + 1) * per_id)
        del hashes[request.prompt_tokens // self._block_size :]
        total = (request.prompt_tokens + request.output_tokens) // self._block_size
        # What is generated is not in the record: no other request has it.
        own = -1 - request.session * _OUTPUT_BLOCKS
        hashes += range(own, own - (total - len(hashes)), -1)
        return hashes


def _read_mooncake(file: TextIO) -> Iterable[_Record]:
    for line in file:
        row = json.loads(line)
        ids = tuple(row["hash_ids"])
        yield int(row["input_length"]), int(row["output_length"]), ids


def _read_azure(file: TextIO) -> Iterable[_Record]:
    for row in csv.DictReader(file):
        yield int(row["ContextTokens"]), int(row["GeneratedTokens"]), ()


def _unreadable(path: Path, why: str) -> ToolError:
    return ToolError(
        Outcome.BAD_TRACE,
        f"{path} is not a trace that can be read: {why}",
        ("Known are Mooncake's .jsonl and Azure's .csv",),
    )
