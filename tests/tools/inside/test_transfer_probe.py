"""How the probe of transfers counts."""

import doctest

from tools.inside import transfer_probe


def test_runs_are_contiguous_on_every_side() -> None:
    assert doctest.testmod(transfer_probe).failed == 0
    assert transfer_probe.runs([]) == 0
    assert transfer_probe.runs([3, 2, 1]) == 3, "NIXL merges ascending blocks only"
    assert transfer_probe.stretches([]) == []
