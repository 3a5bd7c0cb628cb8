"""Requests with block hashes of no cost."""

import os
from collections.abc import Callable, Sequence
from itertools import count

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from tools.inside.setting import BLOCK_SIZE, MAX_TOKENS

Hasher = Callable[[Request], list[bytes]]

_numbers = count()


def random_hashes(known: Sequence[bytes] = ()) -> Hasher:
    """Return a block hasher of no cost: `known` hashes first, then new ones."""

    def hash_blocks(request: Request) -> list[bytes]:
        begin, end = len(request.block_hashes), request.num_tokens // BLOCK_SIZE
        return [
            known[index] if index < len(known) else os.urandom(32)
            for index in range(begin, end)
        ]

    return hash_blocks


def make_request(num_tokens: int, hasher: Hasher | None = None) -> Request:
    """Return a request of so many prompt tokens."""
    return Request(
        request_id=f"request-{next(_numbers)}",
        prompt_token_ids=[1] * num_tokens,
        sampling_params=SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
        pooling_params=None,
        block_hasher=hasher,
    )
