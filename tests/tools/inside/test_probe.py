"""How the probe counts."""

import pytest

from tools.inside.probe import count_runs


@pytest.mark.parametrize(
    ("blocks", "runs"),
    [([], 0), ([7], 1), ([3, 4, 5], 1), ([5, 4, 3], 3), ([1, 2, 9, 10, 4], 3)],
)
def test_runs_are_maximal_contiguous_stretches(blocks: list[int], runs: int) -> None:
    assert count_runs(blocks) == runs
