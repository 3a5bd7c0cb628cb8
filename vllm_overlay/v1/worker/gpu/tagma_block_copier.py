# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Copies of KV cache blocks on a GPU, all of a step in one launch."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import gcd

import numpy as np
import torch

from vllm.triton_utils import tl, triton
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.tagma_kernels import _copy_blocks_kernel

# What a program copies at once, and the blocks of a run that it copies one after the
# other: enough bytes for each thread, and enough programs for a few blocks.
TILE_BYTES = 8192
MAX_RUN = 4
_WIDEST_BYTES = 16


@dataclass(frozen=True)
class Segment:
    """Contiguous bytes of every block: a layer's, or a part of them.

    Args:
        address: Where those of block 0 begin.
        stride: Bytes from one block to the next.
        length: Bytes of a block.

    """

    address: int
    stride: int
    length: int


def segments(kv_caches: Iterable[torch.Tensor], num_blocks: int) -> list[Segment]:
    """Return what upstream's `copy_kv_cache_blocks_inplace` copies of a block.

    Layers that share their KV, or a storage whose blocks hold nothing else, count
    once. Dimension 0 of a cache has `num_blocks` blocks or a multiple of them: the
    kernel blocks of one block are next to each other.
    """
    found: list[Segment] = []
    views: set[int] = set()
    storages: set[int] = set()
    for cache in kv_caches:
        if cache.data_ptr() in views:
            continue
        views.add(cache.data_ptr())
        blocks = cache.unflatten(0, (num_blocks, cache.shape[0] // num_blocks))
        storage = cache.untyped_storage()
        stride = blocks.stride(0) * cache.element_size()
        if storage.nbytes() != num_blocks * stride:
            found += _parts(blocks, stride)
        elif storage.data_ptr() not in storages:
            storages.add(storage.data_ptr())
            found.append(Segment(storage.data_ptr(), stride, stride))
    return found


def _parts(blocks: torch.Tensor, block_stride: int) -> Iterator[Segment]:
    """Yield the contiguous parts of a block, which is at dimension 0."""
    size = blocks.element_size()
    dims = sorted(
        (stride * size, count)
        for stride, count in zip(blocks.stride()[1:], blocks.shape[1:])
        if count > 1
    )
    length = size
    while dims and dims[0][0] == length:
        length *= dims.pop(0)[1]
    for indices in product(*(range(count) for _, count in dims)):
        offset = sum(i * stride for i, (stride, _) in zip(indices, dims))
        yield Segment(blocks.data_ptr() + offset, block_stride, length)


@dataclass(frozen=True)
class CopyPlan:
    """Copies as the kernel makes them.

    Args:
        runs: [num_runs, 3] of int32: source, target and count.
        sequences: [num_sequences, 4] of int32: first run, end of its runs, and source
            and target of the copy that is read before and written after them, or -1.

    """

    runs: np.ndarray
    sequences: np.ndarray

    @classmethod
    def of(cls, copies: Sequence[tuple[int, int]]) -> "CopyPlan":
        """Plan copies that are all meant to read before any writes.

        Copies are (source, target), of which each has a target of its own. Those
        whose source or target is another's are put in order: each tree of them, and
        each cycle with its trees, is a sequence. The others are sequences of one run.
        """
        ids = np.fromiter(chain.from_iterable(copies), np.int32, 2 * len(copies))
        pairs = ids.reshape(-1, 2)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        sources, targets = pairs.T
        is_tied = np.isin(targets, sources) | np.isin(sources, targets)
        runs = _runs(pairs[~is_tied])
        first = np.arange(len(runs), dtype=np.int32)
        none = np.full_like(first, -1)
        sequences = np.stack([first, first + 1, none, none], axis=1)
        if not is_tied.any():
            return cls(runs, sequences)
        ordered: list[tuple[int, int, int]] = []
        tied: list[tuple[int, int, int, int]] = []
        for sequence, saved in _in_order(pairs[is_tied].tolist()):
            begin = len(runs) + len(ordered)
            ordered += ((source, target, 1) for source, target in sequence)
            tied.append((begin, begin + len(sequence), *saved))
        return cls(
            np.concatenate([runs, np.array(ordered, np.int32)]),
            # The longest ones first.
            np.concatenate([np.array(tied, np.int32), sequences]),
        )


def _runs(pairs: np.ndarray) -> np.ndarray:
    """Return runs of at most `MAX_RUN` blocks for copies in any order."""
    pairs = pairs[np.argsort(pairs[:, 1])]
    is_first = np.ones(len(pairs), bool)
    is_first[1:] = (np.diff(pairs, axis=0) != 1).any(axis=1)
    places = np.arange(len(pairs))
    begins = np.maximum.accumulate(np.where(is_first, places, 0))
    firsts = np.flatnonzero((places - begins) % MAX_RUN == 0)
    counts = np.diff(firsts, append=len(pairs))
    return np.column_stack([pairs[firsts], counts]).astype(np.int32)


Copies = list[tuple[int, int]]


def _in_order(copies: Copies) -> Iterator[tuple[Copies, tuple[int, int]]]:
    """Yield the copies of each tree or cycle, readers of a block before its writer.

    With each comes the copy of a cycle that is read first and written last, (-1, -1)
    for a tree.
    """
    targets_of: dict[int, list[int]] = defaultdict(list)
    source_of: dict[int, int] = {}
    for source, target in copies:
        targets_of[source].append(target)
        source_of[target] = source

    def tree(root: int) -> Copies:
        found: Copies = []
        sources = [root]
        while sources:
            source = sources.pop()
            for target in targets_of.pop(source, ()):
                found.append((source, target))
                sources.append(target)
        return found[::-1]

    for root in [source for source in targets_of if source not in source_of]:
        yield tree(root), (-1, -1)
    while targets_of:
        # Every block that is left has a source: going back from one ends in a cycle.
        target, passed = next(iter(targets_of)), set()
        while target not in passed:
            passed.add(target)
            target = source_of[target]
        source = source_of[target]
        targets_of[source].remove(target)
        yield tree(target), (source, target)


class BlockCopier:
    """Copies blocks of all layers, in one launch and without a temporary."""

    def __init__(self, kv_caches: Sequence[torch.Tensor], num_blocks: int):
        """Take down where the blocks of the caches are, and compile the kernel.

        Args:
            kv_caches: The layers' caches, on one device; blocks in dimension 0.
            num_blocks: The scheduler's blocks.

        """
        self._device = kv_caches[0].device
        found = segments(kv_caches, num_blocks)
        numbers = np.array([(s.address, s.stride, s.length) for s in found])
        vector_bytes = gcd(_WIDEST_BYTES, int(np.gcd.reduce(numbers, axis=None)))
        size = 4 if vector_bytes % 4 == 0 else 1
        numbers[:, 1:] //= size
        longest = int(numbers[:, 2].max())
        tile = min(triton.next_power_of_2(longest), TILE_BYTES // size)
        self._num_tiles = triton.cdiv(longest, tile)
        self._segments = [
            torch.tensor(column, dtype=torch.int64, device=self._device)
            for column in numbers.T
        ]
        self._constants = {
            "NUM_SEGMENTS": len(found),
            "ELEMENT": tl.int32 if size == 4 else tl.int8,
            "VECTOR": vector_bytes // size,
            "VECTOR_BYTES": vector_bytes,
            "BLOCK_SIZE": tile,
        }
        nothing = CopyPlan(np.zeros((1, 3)), np.array([[0, 1, -1, -1]]))
        self._launch(nothing)

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy (source, target) blocks, as if all were read before any is written.

        No two copies may have one target.
        """
        plan = CopyPlan.of(copies)
        if len(plan.sequences):
            self._launch(plan)

    def _launch(self, plan: CopyPlan) -> None:
        numbers = np.concatenate([plan.sequences.ravel(), plan.runs.ravel()])
        num_sequences = len(plan.sequences)
        grid = (num_sequences * self._constants["NUM_SEGMENTS"], self._num_tiles)
        _copy_blocks_kernel[grid](
            *self._segments,
            async_tensor_h2d(numbers.astype(np.int32), device=self._device),
            **self._constants,
        )
