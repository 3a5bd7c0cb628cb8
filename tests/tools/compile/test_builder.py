"""`build`: what it needs before it begins, as a user sees it."""

import json

import pytest

from tools.base.outcome import Outcome


def failure(done) -> dict:
    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] != 0
    return report


@pytest.mark.parametrize("options", [[], ["--editable"], ["--mode", "full"]])
def test_without_a_tree_it_names_apply(make_checkout, options):
    checkout = make_checkout(lock=False)
    report = failure(checkout.cli("build", "--json", *options))
    assert report["outcome"] == Outcome.OUT_OF_SYNC.value
    assert f"--project {checkout.project.root} apply" in report["next_steps"][0]


def test_a_tree_older_than_its_inputs_is_refused(checkout):
    (checkout.project.root / "vllm_overlay" / "more.py").write_text("")
    report = failure(checkout.cli("build", "--json"))
    assert "older than" in report["message"]
    assert f"--project {checkout.project.root} apply" in report["next_steps"][0]
    assert not checkout.project.venv.exists()


def test_an_edited_tree_is_refused(checkout):
    (checkout.project.tree / "vllm" / "core.py").write_text("edited\n")
    report = failure(checkout.cli("build", "--json"))
    assert report["outcome"] == Outcome.TREE_EDITED.value
    assert report["details"] == ["vllm/core.py"]


def test_an_editable_install_has_no_other_device(checkout):
    done = checkout.cli("build", "--editable", "--device", "cuda")
    assert done.returncode == 2
    assert "--editable" in done.stderr
