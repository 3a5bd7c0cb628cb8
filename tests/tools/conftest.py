"""Fixtures of all tests of the tools."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import (
    FILES,
    FIRST_PATCH,
    OVERLAY,
    SECOND_PATCH,
    Checkout,
    killing_git_environment,
    make_sdist,
    tree_id,
)
from hypothesis import HealthCheck, settings

from tools.base.project import LOCK_WAIT, Project

# A busy machine is no reason to fail.
settings.register_profile(
    "without a clock", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("without a clock")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests reach no index but the one that they serve themselves."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test holds a lock, others are refused, under `tools test` too."""
    monkeypatch.delenv(LOCK_WAIT, raising=False)


@pytest.fixture
def make_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Checkout]:
    """Return a maker of checkouts with their own build folder and cache."""

    def make(name: str = "checkout", lock: bool = True) -> Checkout:
        root = tmp_path / name
        for folder in (
            "upstream",
            "patches",
            "csrc_tagma",
            "vllm_overlay",
            "tests/vllm",
        ):
            (root / folder).mkdir(parents=True)
        (root / "vllm_overlay" / "tagma.py").write_bytes(OVERLAY)
        (root / "patches" / "series").write_text("# the series\n\n")
        monkeypatch.setenv("TAGMA_CACHE", str(tmp_path / "cache"))
        checkout = Checkout(Project.at(root), tmp_path / f"{name}-1.0.tar.gz")
        make_sdist(checkout.sdist, FILES)
        checkout.write_patch("0001-count.patch", FIRST_PATCH)
        checkout.write_patch("0002-crlf.patch", SECOND_PATCH)
        checkout.write_pin(tree_id(tmp_path / f"{name}-tree", FILES))
        if lock:
            checkout.apply(relock=True)
        return checkout

    return make


@pytest.fixture
def checkout(make_checkout: Callable[..., Checkout]) -> Checkout:
    """A checkout that has been applied and locked."""
    return make_checkout()


@pytest.fixture
def hostile_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A global git configuration that would change nearly every result."""
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    for name in ("pre-commit", "post-checkout", "commit-msg", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {home}/ran\nexit 1\n")
        (hooks / name).chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[core]\nautocrlf=true\neol=crlf\nhooksPath={hooks}\nfileMode=false\n"
        f"excludesFile={home}/ignore\nattributesFile={home}/attributes\n"
        "[am]\nthreeWay=true\n[apply]\nwhitespace=error\n[diff]\nrenames=copies\n"
        "noprefix=true\nmnemonicPrefix=true\nalgorithm=patience\ncontext=7\n"
        "[commit]\ngpgSign=true\n[gpg]\nprogram=/bin/false\n"
        f"[init]\ntemplateDir={home}/template\n[color]\nui=always\n"
        "[user]\nname=Somebody Else\nemail=else@example.com\n"
        '[filter "bad"]\nclean=tr a-z A-Z\nsmudge=tr a-z A-Z\nrequired=true\n'
    )
    (home / "ignore").write_text("*.py\n*.txt\n")
    (home / "attributes").write_text("* filter=bad text=auto\n*.py -diff\n")
    (home / "template" / "hooks").mkdir(parents=True)
    shutil.copy(hooks / "post-checkout", home / "template" / "hooks")
    for name, value in {
        "HOME": home,
        "XDG_CONFIG_HOME": home,
        "GIT_CONFIG_GLOBAL": home / ".gitconfig",
        "GIT_DIR": home / "nowhere",
        "GIT_INDEX_FILE": home / "index",
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.autocrlf",
        "GIT_CONFIG_VALUE_0": "true",
    }.items():
        monkeypatch.setenv(name, str(value))
    return home


@pytest.fixture
def calm(hostile_config: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what ends the hostile configuration."""

    def end() -> None:
        for name in list(os.environ):
            if name.startswith("GIT_"):
                monkeypatch.delenv(name)
        for name in ("HOME", "XDG_CONFIG_HOME"):
            monkeypatch.setenv(name, str(hostile_config / "empty"))

    return end


@pytest.fixture
def killing_git() -> Callable[..., dict[str, str]]:
    """Return a maker of environments in which a git call kills its caller."""
    return killing_git_environment
