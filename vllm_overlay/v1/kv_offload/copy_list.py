# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Lists of copies, as offloading hands them to the DMA engine."""

from collections.abc import Sequence

import numpy as np


def merge_copies(
    sources: np.ndarray,
    targets: np.ndarray,
    sizes: np.ndarray,
    seams: Sequence[int] | np.ndarray = (),
) -> int:
    """Merge copies of a list, in place, that continue the one before them.

    A copy engine needs time for each copy, whatever its size. Blocks that lie one
    behind the other on both sides, in the order of the list, become one copy of the
    same bytes.

    Args:
        sources: Addresses to read from, of one integer type with the two others;
            one-dimensional. The first entries hold the result.
        targets: Addresses to write to, as many.
        sizes: Bytes of each copy, as many.
        seams: Addresses at which an allocation, or a registration of host memory,
            begins. No copy is extended past one: drivers need not take a copy that
            runs through two.

    Returns:
        The number of copies that are left.

    """
    if len(sizes) < 2:
        return len(sizes)
    continues = sources[1:] == sources[:-1] + sizes[:-1]
    continues &= targets[1:] == targets[:-1] + sizes[:-1]
    if len(seams):
        starts = np.unique(np.asarray(seams, dtype=sources.dtype))
        later = np.flatnonzero(continues)
        for addresses in (sources, targets):
            continues[later[_is_in(addresses[later + 1], starts)]] = False
    first = np.concatenate(([0], np.flatnonzero(~continues) + 1))
    num_copies = len(first)
    sizes[:num_copies] = np.add.reduceat(sizes, first)
    sources[:num_copies] = sources[first]
    targets[:num_copies] = targets[first]
    return num_copies


def _is_in(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Whether each value is among `ordered`, which is not empty."""
    places = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    return ordered[places] == values
