"""The real series, carried from the pinned release to the next one.

Both sdists come from the user's cache, or from the index that pip is configured
with: their hashes are in upstream/releases.toml.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import REPOSITORY

from tools.base.project import Project
from tools.compile import extension
from tools.source.pin import Pin

NEXT = "0.33.0"
# As it was before the fixture that keeps other tests from the network.
ENVIRONMENT = dict(os.environ)


@pytest.fixture(scope="module")
def rebased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scratch copy of this checkout, rebased; the pin of this one stays."""
    root = tmp_path_factory.mktemp("rebased")
    for name in ("patches", "upstream", "csrc_tagma", "vllm_overlay", "tests"):
        shutil.copytree(
            REPOSITORY / name,
            root / name,
            ignore=shutil.ignore_patterns("__pycache__", ".*"),
        )
    done = tools(root, "rebase", NEXT, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (root / "result.json").write_text(done.stdout)
    return root


def tools(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools", "--project", root, *args],
        cwd=REPOSITORY,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )


def patches(root: Path) -> dict[str, dict[str, object]]:
    data = json.loads((root / "result.json").read_text())["data"]
    return {patch["name"]: patch for patch in data["patches"]}


def test_every_patch_lands_or_is_upstream(rebased: Path) -> None:
    landings = {name: patch["landing"] for name, patch in patches(rebased).items()}
    names = (REPOSITORY / "patches" / "series").read_text().split()
    assert list(landings) == names
    backport = next(name for name in names if "backport" in name)
    assert landings.pop(backport) == "upstream"
    assert set(landings.values()) <= {"clean", "moved", "merged", "resolved"}
    series = (rebased / "patches" / "series").read_text().split()
    assert series == [name for name in names if name != backport]


def test_backport_is_dropped_with_evidence_and_a_copy(rebased: Path) -> None:
    name, patch = next((n, p) for n, p in patches(rebased).items() if "backport" in n)
    text = "\n".join(patch["details"])
    assert "vllm/utils/cpu_triton_utils.py:" in text
    assert "+ KV_CACHE_BLOCK_SIZE: int," in text
    (kept,) = (rebased / "build" / "dropped").glob(f"*/patches/{name}")
    assert kept.read_bytes() == (REPOSITORY / "patches" / name).read_bytes()


def test_requirements_conflict_and_a_stored_resolution_solves_it(
    rebased: Path,
) -> None:
    patch = next(p for n, p in patches(rebased).items() if "requirements" in n)
    assert patch["landing"] == "resolved"
    used = dict(patch["resolutions"])
    assert set(used) == {"requirements/build/cpu.txt", "requirements/cpu.txt"}
    for name in used.values():
        assert (REPOSITORY / "patches" / "resolutions" / name).is_file()
    text = (rebased / "build" / "tree" / "requirements" / "cpu.txt").read_text()
    assert "\ntorch==2.14.0\n" in text and "<<<<<<<" not in text


def test_pin_and_lock_moved_and_the_series_is_in_sync(rebased: Path) -> None:
    pin = Pin.read(rebased / "upstream" / "pin.toml")
    assert (pin.version, pin.sdist.filename) == (NEXT, f"vllm-{NEXT}.tar.gz")
    applied = tools(rebased, "apply", "--json")
    assert json.loads(applied.stdout)["outcome"] == "unchanged"
    assert json.loads(applied.stdout)["data"]["tree"] == pin.patched_tree
    assert tools(rebased, "export", "--check").returncode == 0


def test_report_names_what_overlays_use_and_the_tests_to_run(rebased: Path) -> None:
    file = next((rebased / "upstream" / "reports").glob("*.json"))
    report = json.loads(file.read_text())
    names = {entry["name"]: entry for entry in report["upstream_names"]}
    pool = names["vllm.v1.core.block_pool.BlockPool.__init__"]
    assert pool["added"] == ["num_hash_lookahead_tokens: int=0"]
    assert "vllm_overlay/v1/core/tagma_block_pool.py" in pool["used_at"]
    # None is missing, and no call or override of ours misfits.
    assert {entry["change"] for entry in names.values()} == {"body", "signature"}
    assert all((REPOSITORY / test).is_file() for test in report["tests"])
    assert report["tests"]
    assert "tests/v1/core/test_prefix_caching.py" in report["upstream_tests"]


def test_extension_builds_by_the_new_releases_cmake(rebased: Path) -> None:
    project = Project.at(rebased)
    with project.lock():
        built = extension.build(project)
    done = subprocess.run(
        [sys.executable, "-c", "import tagma; print(tagma.__name__)"],
        env={**ENVIRONMENT, "PYTHONPATH": str(built.parent)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip().endswith("tagma"), done.stderr
