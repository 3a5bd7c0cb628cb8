"""`matrix`: where the series lands, as a rebase would tell."""

import json

import pytest
from checkout import CORE, Checkout
from rebases import put_on
from releases import CONFLICT, release


def test_matrix_tells_each_cell_and_changes_nothing(checkout: Checkout) -> None:
    release(checkout, {"vllm/core.py": "import os\n\n\n" + CORE}, "1.1")
    release(checkout, CONFLICT, "1.2")
    release(checkout, {"vllm/core.py": CORE.replace("+= 2", "+= 3"),
                       "vllm/tagma.py": "theirs\n"}, "1.3")  # fmt: skip
    before = checkout.files()
    output = checkout.project.root / "out"
    done = checkout.cli(
        "matrix", "1.1", "1.2", "1.3", "--json", "--output", str(output)
    )
    assert done.returncode == 0, done.stderr
    columns = json.loads(done.stdout)["data"]["releases"]
    cells = [[cell["landing"] for cell in column["cells"]] for column in columns]
    assert cells == [["moved", "clean"], ["conflict", "clean"], ["upstream", "clean"]]
    # Of two patches and the overlays.
    assert [column["share"] for column in columns] == [1.0, 0.667, 0.667]
    assert columns[2]["clashes"] == ["vllm/tagma.py"]
    assert any("+= 20" in line for line in columns[1]["cells"][0]["details"])
    assert checkout.files() == before
    assert not (checkout.project.build / "rebase").exists()
    first = {path.name: path.read_bytes() for path in output.iterdir()}
    assert set(first) == {"matrix.json", "matrix.md", "matrix.svg"}
    checkout.cli("matrix", "1.1", "1.2", "1.3", "--output", str(output))
    assert {path.name: path.read_bytes() for path in output.iterdir()} == first


LONG = CORE.replace("total", "total_of_all_requests")


@pytest.mark.parametrize(
    "changes",
    [
        {"README.md": "moved\n" * 9},
        {"vllm/core.py": "import os\n\n\n" + LONG},
        {"vllm/core.py": LONG.replace("+= 2", "+= 3")},
        {"vllm/core.py": LONG.replace("def second", "def other")},
        {"vllm/core.py": None, "vllm/engine.py": LONG},
        {"vllm/core.py": None},
        {"crlf.txt": None},
        {"vllm/core.py": LONG.replace("+= 2", "+= 20")},
    ],
)
def test_matrix_and_rebase_say_the_same(
    checkout: Checkout, changes: dict[str, str | None]
) -> None:
    """Down to the details, which may name an overlay that has the same lines."""
    overlay = checkout.project.root / "vllm_overlay" / "tagma.py"
    overlay.write_text(overlay.read_text() + LONG)
    patch = checkout.project.patches / "0001-count.patch"
    patch.write_text(patch.read_text().replace("total", "total_of_all_requests"))
    release(checkout, {"vllm/core.py": LONG}, "1.5")
    put_on(checkout, "1.5")
    release(checkout, {"vllm/core.py": LONG} | changes)
    done = checkout.cli("matrix", "2.0", "--json")
    (column,) = json.loads(done.stdout)["data"]["releases"]
    rebased = json.loads(checkout.cli("rebase", "2.0", "--json").stdout)["data"]
    told = rebased["patches"] + [rebased["stopped"]] * bool(rebased["stopped"])
    for cell, patched in zip(column["cells"], told, strict=False):
        assert cell["landing"] == patched["landing"]
        if cell["files"]:
            assert cell["details"] == patched["details"]


@pytest.mark.parametrize(
    "path", ["vllm/tagma.py", "vllm/tagma.py/inside.py", "vllm/new", "vllm/new/x.py"]
)
def test_matrix_says_where_an_overlay_stops_a_rebase(
    checkout: Checkout, path: str
) -> None:
    """It said 100 % of a release to which no rebase begins."""
    (checkout.project.root / "vllm_overlay" / "new").mkdir()
    (checkout.project.root / "vllm_overlay" / "new" / "x.py").write_text("x = 1\n")
    checkout.apply(relock=True)
    release(checkout, {path: "theirs\n"})
    rebased = checkout.cli("rebase", "2.0")
    assert rebased.returncode == 3 and "would replace upstream's" in rebased.stderr
    done = checkout.cli("matrix", "2.0", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (column,) = report["data"]["releases"]
    assert column["share"] == 0.667
    (clash,) = column["clashes"]
    assert clash in rebased.stderr
    assert any(clash in line and "no rebase" in line for line in report["details"])
    shown = checkout.cli("matrix", "2.0").stdout
    assert "overlays" in shown and "replace 1" in shown
