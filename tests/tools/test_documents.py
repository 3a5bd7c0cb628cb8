"""What the documents name exists: files, tests, commands, targets and links."""

import re
import subprocess
from functools import cache

import click
import pytest
from checkout import REPOSITORY

from tools.cli.group import main

DOCUMENTS = [
    *sorted(path.name for path in REPOSITORY.glob("*.md")),
    "upstream/reports/backend.md",
]
COMMANDS = set(main.list_commands(click.Context(main)))
# Folders and files at the top of the repository, by which a path is recognised.
TOPS = {path.name for path in REPOSITORY.iterdir()} - {"build"}


def text_of(document: str) -> str:
    return (REPOSITORY / document).read_text("utf-8")


def quoted(document: str) -> list[str]:
    """Return what stands between back quotes, and each line of code, uncommented."""
    text = text_of(document)
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest)]
    code = (line.partition(" # ")[0] for block in blocks for line in block.splitlines())
    return [*spans, *code]


@cache
def sources() -> str:
    """Return the text of all tests, of the engine's too."""
    listed = subprocess.run(
        ["git", "ls-files", "tests", "csrc_tagma/tests"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return "\n".join(
        (REPOSITORY / path).read_text("utf-8")
        for path in listed
        if path.endswith((".py", ".cpp"))
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_and_links_exist(document: str) -> None:
    text = text_of(document)
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    missing = [
        link for link in links if not ((REPOSITORY / document).parent / link).exists()
    ]
    for span in quoted(document):
        path = span.split()[0] if span.split() else ""
        known = path.partition("/")[0] in TOPS and "/" in path
        if known and not re.search(r"[*…<>A-Z]{2,}|[*…]", path):
            missing += [] if (REPOSITORY / path).exists() else [path]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_and_targets_exist(document: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    unknown = []
    for span in quoted(document):
        for name in re.findall(r"(?:\btagma|-m tools) ([a-z][a-z-]*)", span):
            unknown += [] if name in COMMANDS else [name]
        if made := re.match(r"make (?:-s )?([a-z][a-z-]*)", span):
            unknown += [] if made[1] in targets else [f"make {made[1]}"]
    assert not unknown


def test_tests_that_the_architecture_names_exist() -> None:
    named = {
        span
        for span in quoted("ARCHITECTURE.md")
        if re.fullmatch(r"test_\w+|[A-Z][a-z]+(?:[A-Z][a-z]*)+", span)
        and not span.startswith(("KV", "Tagma"))
    }
    defined = set(re.findall(r"\bdef (test_\w+)", sources()))
    defined |= set(re.findall(r"^TEST\w*\(\w+, (\w+)\)", sources(), re.M))
    assert len(named) > 15
    assert named - defined == {"PrefixIndex"} & named


def test_changelog_begins_with_what_is_not_released() -> None:
    heads = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", text_of("CHANGELOG.md"), re.M)
    assert heads[0] == ("Unreleased", "")
    versions = [version for version, _ in heads[1:]]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+\+tagma\.\d+", v) for v in versions)
    assert versions == sorted(versions, key=lambda v: int(v[-1]), reverse=True)


def test_the_map_names_each_package() -> None:
    folder = REPOSITORY / "tools"
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert packages <= set(re.findall(r"`(\w+)`", text_of("ARCHITECTURE.md")))
