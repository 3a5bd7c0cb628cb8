"""A tiny upstream release with a real sdist, pin, overlays and series."""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.cli.group import main
from tools.source.fetch import Sdist
from tools.tree.tree import Tree

REPOSITORY = Path(__file__).resolve().parents[2]

CORE = """\
def first():
    total = 0
    total += 1
    return total


def second():
    total = 0
    total += 2
    return total
"""

FILES = {
    "README.md": b"# upstream\n",
    ".gitignore": b"*.generated\nbuild/\n",
    "shipped.generated": b"ignored by upstream, shipped all the same\n",
    "crlf.txt": b"one\r\ntwo\r\nthree\r\n",
    "vllm/core.py": CORE.encode(),
    "vllm/__init__.py": b"",
    "run.sh": b"#!/bin/sh\n",
}

OVERLAY = b"# SPDX-License-Identifier: Apache-2.0\nNAME = 'tagma'\n"

HEADER = """\
From: A. Müller <a@example.com>
Subject: {subject}

Why it is needed.

Origin: vendor
Forwarded: no
Upstream-Status: Pending
Last-Update: 2026-01-02
SPDX-License-Identifier: Apache-2.0
---
"""

FIRST_PATCH = (
    HEADER.format(subject="core: count by three")
    + """\
diff --git a/vllm/core.py b/vllm/core.py
index 1111111..2222222 100644
--- a/vllm/core.py
+++ b/vllm/core.py
@@ -8,3 +8,3 @@ def second():
     total = 0
-    total += 2
+    total += 3
     return total
"""
)

SECOND_PATCH = (
    HEADER.format(subject="crlf: a second line") + "diff --git a/crlf.txt b/crlf.txt\n"
    "index 1111111..2222222 100644\n"
    "--- a/crlf.txt\n"
    "+++ b/crlf.txt\n"
    "@@ -1,3 +1,3 @@\n"
    " one\r\n"
    "-two\r\n"
    "+zwei\r\n"
    " three\r\n"
)


def make_sdist(path: Path, files: dict[str, bytes]) -> str:
    """Write a .tar.gz of `files` under one top folder; return its sha256."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"vllm-1.0/{name}")
            info.size = len(content)
            info.mode = 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Checkout:
    """A small checkout of the fork, and its sdist beside it."""

    project: Project
    sdist: Path

    @property
    def tree(self) -> Tree:
        return Tree(self.project)

    def apply(self, *, drop: bool = False, relock: bool = False):
        with self.project.lock():
            return self.tree.apply(
                Sdist(self.project.cache, self.sdist), drop=drop, relock=relock
            )

    def tools(self, *args: str, code: int = 0) -> Result:
        """Run a command in this process; check its exit code."""
        argv = ["tools", "--project", str(self.project.root), *args]
        with patch.object(sys, "argv", argv):
            done = CliRunner().invoke(main, argv[1:])
        assert done.exit_code == code, done.output
        return done

    def follow(self, output: str) -> None:
        """Do literally what an error advises, up to its first alternative.

        git runs with the user's configuration, as in the user's own shell.
        """
        for line in output.splitlines():
            step = line.removeprefix("next: ")
            if step == line:
                continue
            if re.match("(?i)or ", step):
                return
            found = re.search(r"(git -C \S+ .+|\S+ -m tools .+)$", step)
            assert found, step
            for command in found[1].split(" && "):
                program, _, words = command.partition(" -m tools ")
                if words:
                    self.tools(*re.sub(r"--project \S+", "", words).split())
                else:
                    root = self.project.root
                    subprocess.run(["sh", "-c", program], cwd=root, check=True)

    def write_patch(self, name: str, text: str, listed: bool = True) -> None:
        (self.project.patches / name).write_bytes(text.encode())
        if listed:
            with (self.project.patches / "series").open("a") as series:
                series.write(f"{name}\n")

    def write_pin(self, tree: str, **changes: str) -> None:
        fields = {
            "sha256": hashlib.sha256(self.sdist.read_bytes()).hexdigest(),
            "commit": "0" * 40,
            "filename": self.sdist.name,
        } | changes
        self.project.pin_file.write_text(
            f'version = "1.0"\ncommit = "{fields["commit"]}"\ntree = "{tree}"\n'
            f'[sdist]\nproject = "vllm"\nfilename = "{fields["filename"]}"\n'
            f'sha256 = "{fields["sha256"]}"\n'
        )

    def files(self) -> dict[str, bytes]:
        """All files of the work tree."""
        root = self.project.tree
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and ".git" not in path.relative_to(root).parts
        }

    def cli(
        self, *args: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m tools` on this checkout as a user would."""
        return subprocess.run(
            [sys.executable, "-m", "tools", "--project", self.project.root, *args],
            cwd=REPOSITORY,
            env={**os.environ, "TAGMA_CACHE": str(self.project.cache), **(env or {})},
            capture_output=True,
            text=True,
        )


def tree_id(folder: Path, files: dict[str, bytes]) -> str:
    """Return the git tree id of files, without the tools' own import."""
    repository = Repository(folder)
    repository.init()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    repository.git("add", "--all", "--force", ".")
    return repository.git("write-tree").text


SHIM = """#!/bin/sh
# Counts git calls; at the chosen one kills the tools, before or after git runs.
count=$(($(cat "$SHIM_DIR/count") + 1)); echo $count > "$SHIM_DIR/count"
[ "$count" = "$KILL_AT" ] && [ "$KILL_WHEN" = before ] && kill -9 $PPID && exit 1
"$REAL_GIT" "$@"; status=$?
[ "$count" = "$KILL_AT" ] && kill -9 $PPID
exit $status
"""


def killing_git_environment(folder: Path, at: int, when: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "git").write_text(SHIM)
    (folder / "git").chmod(0o755)
    (folder / "count").write_text("0")
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SHIM_DIR": str(folder),
        "REAL_GIT": shutil.which("git") or "",
        "KILL_AT": str(at),
        "KILL_WHEN": when,
    }


def refused(checkout: Checkout, outcome: Outcome, **options: bool) -> ToolError:
    """Apply, expect the outcome, and check that the tree is as it was."""
    before = checkout.files() if checkout.project.tree.exists() else {}
    with pytest.raises(ToolError) as caught:
        checkout.apply(**options)
    assert caught.value.outcome is outcome
    assert (checkout.files() if checkout.project.tree.exists() else {}) == before
    assert not list(checkout.project.build.glob("scratch-*"))
    return caught.value
