"""The tree's own git configuration shields it from the user's."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import HEADER, OVERLAY, Checkout

TRAILERS = HEADER.split("needed.\n\n")[1].removesuffix("---\n")
MESSAGE = f"docs: ours\n\nWhy.\n\n{TRAILERS}"
Git = Callable[..., str]


@pytest.fixture
def users_git(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Git:
    """git in the tree, as a user runs it whose configuration is against us."""
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    for name in ("pre-commit", "commit-msg", "post-checkout", "reference-transaction"):
        (hooks / name).write_text("#!/bin/sh\nexit 1\n")
        (hooks / name).chmod(0o755)
    (home / "ignored").write_text("*.txt\n*.md\n")
    (home / "attributes").write_text("* filter=upper text=auto merge=mine\n")
    (home / "template").write_text("a template\n")
    (home / ".gitconfig").write_text(
        f"[core]\nautocrlf=true\neol=crlf\nsafecrlf=true\nhooksPath={hooks}\n"
        f"excludesFile={home}/ignored\nattributesFile={home}/attributes\n"
        "fileMode=false\nfsmonitor=/bin/false\nsparseCheckout=true\n"
        "splitIndex=true\ncommentChar=%\nlogAllRefUpdates=false\n"
        "[user]\nuseConfigOnly=true\n[commit]\ngpgSign=true\n"
        f"template={home}/template\n[gpg]\nprogram=/bin/false\n"
        "[tag]\ngpgSign=true\n[merge]\ndefault=mine\nrenames=false\n"
        "[apply]\nwhitespace=error\n[mailinfo]\nscissors=true\n"
        '[merge "mine"]\ndriver=false\n'
        '[filter "upper"]\nclean=tr a-z A-Z\nsmudge=tr a-z A-Z\nrequired=true\n'
    )
    monkeypatch.setenv("HOME", str(home))
    for name in ("GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    checkout.tools("apply")

    def git(*words: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["git", "-C", checkout.project.tree, *words],
            input=stdin,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return git


def edit(checkout: Checkout) -> None:
    tree = checkout.project.tree
    (tree / "README.md").write_text("# ours\n")
    crlf = (tree / "crlf.txt").read_bytes()
    (tree / "crlf.txt").write_bytes(crlf.replace(b"zwei", b"deux"))
    (tree / "new.txt").write_text("new\n")


def test_stash_and_its_way_back_change_no_line_end(
    checkout: Checkout, users_git: Git
) -> None:
    edit(checkout)
    before = checkout.files()
    users_git("stash", "--include-untracked")
    assert checkout.tools("apply").exit_code == 0
    users_git("stash", "pop")
    assert checkout.files() == before
    checkout.tools("refresh")
    text = (checkout.project.patches / "0002-crlf.patch").read_bytes()
    added = [line for line in text.split(b"\n") if line.startswith(b"+")]
    assert added == [
        *(b"+++ b/README.md", b"+# ours", b"+++ b/crlf.txt", b"+deux\r"),
        *(b"+++ b/new.txt", b"+new"),
    ]


def test_commits_pass_without_the_users_hooks_keys_and_identity(
    checkout: Checkout, users_git: Git
) -> None:
    edit(checkout)
    users_git("add", "--all")
    users_git("commit", "--quiet", "--file=-", stdin=MESSAGE)
    users_git("commit", "--amend", "--no-edit", "--signoff", "--quiet")
    users_git("tag", "-m", "one", "one")
    assert "deux" in users_git("show", "HEAD")
    assert users_git("reflog") != ""
    checkout.tools("export")
    text = (checkout.project.patches / "0003-docs-ours.patch").read_text()
    assert text.startswith("From: tagma <tagma@localhost>\n")
    assert "+new" in text


def test_users_own_name_stays_the_author(checkout: Checkout, users_git: Git) -> None:
    config = Path(os.environ["HOME"]) / ".gitconfig"
    config.write_text(
        f"{config.read_text()}[user]\nname=A. Nother\nemail=a@example.com\n"
    )
    checkout.tools("apply")
    edit(checkout)
    users_git("add", "--all")
    users_git("commit", "--quiet", "--file=-", stdin=MESSAGE)
    checkout.tools("export")
    text = (checkout.project.patches / "0003-docs-ours.patch").read_text()
    assert text.startswith("From: A. Nother <a@example.com>\n")


def test_git_am_takes_the_own_patches_in_the_tree(
    checkout: Checkout, users_git: Git
) -> None:
    tree = users_git("rev-parse", "HEAD^{tree}")
    users_git("reset", "--quiet", "--hard", "HEAD~2")
    for path in sorted(checkout.project.patches.glob("*.patch")):
        users_git("am", "--quiet", str(path))
    assert users_git("rev-parse", "HEAD^{tree}") == tree


def test_tree_of_earlier_tools_gets_its_shield(
    checkout: Checkout, users_git: Git
) -> None:
    config = checkout.project.tree / ".git" / "config"
    config.write_text(config.read_text().partition("[include]")[0])
    checkout.tools("apply")
    checkout.tools("apply")
    assert users_git("config", "core.autocrlf") == "false\n"
    assert config.read_text().count("tagma.config") == 1


@pytest.mark.parametrize("way", ["refresh", "new docs", "apply --drop"])
def test_each_advice_about_edits_works(
    checkout: Checkout, users_git: Git, way: str
) -> None:
    edit(checkout)
    output = checkout.tools("apply", code=1).output
    advised = way.replace("docs", "SUBJECT")
    assert f"{advised}\n" in output
    checkout.tools(*way.split())
    checkout.tools("apply")
    checkout.tools("export", "--check")
    assert (b"ours" in checkout.files()["README.md"]) == (way != "apply --drop")


@pytest.mark.parametrize("way", ["export", "apply --drop"])
def test_each_advice_about_commits_works(
    checkout: Checkout, users_git: Git, way: str
) -> None:
    edit(checkout)
    users_git("add", "--all")
    users_git("commit", "--quiet", "--file=-", stdin=MESSAGE)
    output = checkout.tools("apply", code=1).output
    assert f"{way}\n" in output
    checkout.tools(*way.split())
    checkout.tools("apply")
    assert (b"ours" in checkout.files()["README.md"]) == (way == "export")


def test_advice_about_a_commit_without_trailers_works(
    checkout: Checkout, users_git: Git
) -> None:
    edit(checkout)
    users_git("add", "--all")
    users_git("commit", "--quiet", "-m", "docs: ours")
    checkout.follow(checkout.tools("export", code=3).output)
    checkout.tools("export")
    assert (checkout.project.patches / "0003-docs-ours.patch").is_file()


def test_advice_about_edits_beside_a_commit_works(
    checkout: Checkout, users_git: Git
) -> None:
    edit(checkout)
    users_git("commit", "--all", "--quiet", "--file=-", stdin=MESSAGE)
    assert " export\n" in checkout.tools("refresh", code=1).output
    checkout.follow(checkout.tools("export", code=1).output)
    checkout.tools("export")
    text = (checkout.project.patches / "0003-docs-ours.patch").read_text()
    assert "+# ours" in text and "+new" in text


@pytest.mark.parametrize("edited", [False, True])
def test_advice_about_a_stale_tree_works(
    checkout: Checkout, users_git: Git, edited: bool
) -> None:
    source = checkout.project.root / "vllm_overlay" / "tagma.py"
    source.write_bytes(OVERLAY + b"MORE = 1\n")
    if edited:
        edit(checkout)
    output = checkout.tools("refresh", code=1).output
    assert ("stash" in output) == edited
    checkout.follow(output)
    assert (b"ours" in checkout.files()["README.md"]) == edited
    checkout.tools("refresh")
    assert b"MORE" in checkout.files()["vllm/tagma.py"]


def test_repository_inside_the_tree_is_moved_away_as_advised(
    checkout: Checkout, users_git: Git
) -> None:
    inside = checkout.project.tree / "inside"
    subprocess.run(["git", "init", "--quiet", inside], check=True)
    assert "Move inside/ away" in checkout.tools("apply", code=1).output
    inside.rename(checkout.project.root / "inside")
    checkout.tools("apply")
