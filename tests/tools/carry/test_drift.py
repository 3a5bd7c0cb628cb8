"""`drift`: how close upstream's changes come to each hunk."""

import json

import pytest
from checkout import CORE, FILES, Checkout
from releases import release

from tools.carry.drift import Closeness


def drift(checkout: Checkout) -> dict[str, dict[str, object]]:
    """The drift of the first patch's hunk, and of the whole."""
    files = {name: content.decode() for name, content in FILES.items()}
    release(checkout, dict(files), "1.0")
    done = checkout.cli("drift", "1.0", "2.0", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    return {"whole": data, "hunk": data["hunks"][0]}


@pytest.mark.parametrize(
    ("changed", "closeness"),
    [
        (None, Closeness.GONE),
        (CORE, Closeness.UNTOUCHED),
        (CORE.replace("+= 1", "+= 7"), Closeness.FILE),
        (CORE.replace("def second():", "def second(a=1):"), Closeness.NEAR),
        (CORE.replace("+= 2", "+= 4"), Closeness.OVERLAP),
    ],
)
def test_drift_tells_how_close_upstream_came(
    checkout: Checkout, changed: str | None, closeness: Closeness
) -> None:
    release(checkout, {"vllm/core.py": changed})
    found = drift(checkout)
    assert found["hunk"]["closeness"] == closeness.value
    assert found["hunk"]["risk"] == closeness.risk
    assert found["whole"]["patches"]["0002-crlf.patch"] == 0
    if closeness is Closeness.OVERLAP:
        assert "+    total += 4" in found["hunk"]["cause"]
        assert found["hunk"]["scope"] == "second"
