"""How counted values are summarised."""

import pytest

from tools.replay.counts import mean, percentile


def test_mean_and_percentile_of_counted_values() -> None:
    counted = {1: 98, 5: 1, 9: 1}
    assert mean(counted) == pytest.approx(1.12)
    assert [percentile(counted, share) for share in (0.5, 0.98, 0.99, 1.0)] == [
        1, 1, 5, 9,
    ]  # fmt: skip
    assert (mean({}), percentile({}, 0.5)) == (0.0, 0)
