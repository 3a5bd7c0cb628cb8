"""Checks of patches and overlays that `apply` does not need, but people do."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from tools.base.errors import ToolError
from tools.base.project import Project
from tools.source.pin import Pin
from tools.tree import overlay
from tools.tree.compose import base_reference
from tools.tree.patch import Patch
from tools.tree.series import Series, listed
from tools.tree.tree import Tree

# Yocto's words for what upstream thinks, and one for what upstream will not get.
_STATUS = (
    *("Pending", "Submitted", "Backport", "Denied", "Inappropriate"),
    "Fork-only",
)
_RESERVED = {
    *("con", "prn", "aux", "nul"),
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)),
}
_UNPORTABLE = re.compile(r'[<>:"|?*\\\x00-\x1f]')
_LONGEST = 200  # of a path in the tree: Windows allows 260 with the folder above it
# What `git am` takes for the end of the message, a new mail or a header, and what
# `git commit` strips; see git's mailinfo.c and builtin/mailsplit.c.
_MANGLED = {
    re.compile(r"---(\s*| \S.*)"): "ends the message",
    re.compile(r"(diff -|Index: ).*"): "is taken for the start of the diff",
    re.compile(r">?From .*"): "is taken for the start of another mail",
    re.compile(r"#.*"): "is dropped as a comment when the commit is reworded",
    re.compile(r"-- "): "is taken for a signature",
}
_IN_BODY = re.compile(r"(From|Subject|Date): .*")
_SIGNATURE = re.compile(rb"\n-- \n[^\n]*\n*\Z")
_OWN_SOURCE = (".py", ".h", ".cpp", ".cu", ".cuh")


@dataclass(frozen=True)
class Finding:
    """Something to mend.

    Args:
        path: The file, in the checkout.
        rule: The check's name.
        message: What is wrong.
        line: Where, from 1; 0: the file as a whole.
        fatal: It must be mended; otherwise it is only said.
    """

    path: str
    rule: str
    message: str
    line: int = 0
    fatal: bool = True

    def __str__(self) -> str:
        """Return one line, which editors can jump to."""
        place = f"{self.path}:{self.line}" if self.line else self.path
        kind = "" if self.fatal else " (warning)"
        return f"{place}: {self.rule}{kind}: {self.message}"


def lint(project: Project) -> list[Finding]:
    """Check all patches and overlays. The caller holds the project's lock.

    Raises:
        ToolError: The pin is broken.
    """
    patches, findings = _read(project)
    overlays = {file.target: file for file in overlay.files(project.root)}
    upstream = _upstream(project)
    for patch in patches:
        findings += _headers(patch)
        findings += mangled(patch)
        findings += _whitespace(patch)
        findings += _contents(patch, overlays)
    findings += _duplicates(patches)
    findings += _overlays(project, overlays, upstream)
    findings += _names(project, patches, overlays, upstream)
    return sorted(findings, key=lambda f: (not f.fatal, f.path, f.line))


def _read(project: Project) -> tuple[list[Patch], list[Finding]]:
    """Return the patches that can be parsed, and what keeps others from it."""
    folder = project.patches
    findings = []
    try:
        Series.read(folder)
    except ToolError as error:
        findings.append(Finding("patches/series", "series", error.message))
    series = folder / "series"
    names = listed(series.read_text("utf-8")) if series.is_file() else []
    names = list(dict.fromkeys(names)) or sorted(p.name for p in folder.glob("*.patch"))
    patches = []
    for name in names:
        if not (folder / name).is_file():
            continue
        try:
            patches.append(Patch.parse(name, (folder / name).read_bytes()))
            list(patches[-1].hunks())
        except ToolError as error:
            findings.append(Finding(f"patches/{name}", "header", error.message))
    return patches, findings


def _upstream(project: Project) -> frozenset[str] | None:
    """Return the release's files; None if it has not been imported yet."""
    repository = Tree(project).repository
    if not repository.exists:
        return None
    base = repository.resolve(base_reference(Pin.read(project.pin_file, locked=False)))
    if base is None:
        return None
    listing = repository.git("ls-tree", "-r", "-z", "--name-only", base).text
    return frozenset(listing.split("\0"))


def _headers(patch: Patch) -> Iterator[Finding]:
    path, fields = f"patches/{patch.name}", patch.fields
    status = fields["Upstream-Status"].split(" ")[0]
    if status not in _STATUS:
        known = ", ".join(_STATUS)
        yield Finding(path, "header", f"Upstream-Status {status!r} is none of {known}")
    if fields["Last-Update"] > datetime.now(UTC).date().isoformat():
        yield Finding(path, "header", "Last-Update lies in the future")
    if not patch.description:
        yield Finding(path, "header", "no description says why it is needed")


def mangled(patch: Patch) -> Iterator[Finding]:
    """Find text that `git am` or `git commit` would not keep."""
    path = f"patches/{patch.name}"
    subject = patch.fields["Subject"]
    if re.match(r"(?i)\[|re:", subject):
        yield Finding(path, "mangled", f"git am strips the start of {subject!r}", 2)
    lines = patch.head().split("\n")
    first = len(patch.fields) + 2
    for number, line in enumerate(lines, start=1):
        if "\r" in line:
            yield Finding(path, "mangled", "a carriage return in the header", number)
        if number < first or number >= len(lines) - 1:
            continue
        for pattern, why in _MANGLED.items():
            if pattern.fullmatch(line):
                yield Finding(path, "mangled", f"{line!r} {why}", number)
        if number == first and _IN_BODY.fullmatch(line):
            yield Finding(path, "mangled", f"{line!r} is taken for a header", number)
    if _SIGNATURE.search(patch.diff):
        yield Finding(path, "mangled", "a mail's signature follows the diff")


def _whitespace(patch: Patch) -> Iterator[Finding]:
    path = f"patches/{patch.name}"
    for number, line in enumerate(patch.head().split("\n"), start=1):
        if line != line.rstrip() and "\r" not in line:
            yield Finding(path, "whitespace", "white space at the line's end", number)
    offset = patch.head().count("\n")
    try:
        files = PatchSet(patch.diff.decode("latin-1"))
    except UnidiffParseError:
        return  # _read has said so
    for file in files:
        changes = [line for hunk in file for line in hunk]
        crlf = any("\r" in change.value for change in changes if not change.is_added)
        if crlf:
            message = f"{file.path} has CRLF line ends: git am needs --keep-cr"
            yield Finding(path, "mangled", message, fatal=False)
        for change in changes:
            text = change.value.rstrip("\n")
            text = text.removesuffix("\r") if crlf else text
            if change.is_added and text != text.rstrip():
                number = offset + (change.diff_line_no or 0)
                yield Finding(path, "whitespace", "white space at a line's end", number)


def _contents(
    patch: Patch, overlays: dict[str, overlay.OverlayFile]
) -> Iterator[Finding]:
    path = f"patches/{patch.name}"
    does_something = re.compile(
        rb"^(@@ |GIT binary patch|(new|deleted) file mode|old mode)", re.MULTILINE
    )
    if not does_something.search(patch.diff):
        yield Finding(path, "empty", "it changes nothing")
    try:
        named = patch.paths()
    except ToolError as error:
        yield Finding(path, "contents", error.message)
        return
    for name in sorted(named & set(overlays)):
        yield Finding(path, "overlap", f"it changes the overlay {name}")


def _duplicates(patches: list[Patch]) -> Iterator[Finding]:
    subjects = Counter(patch.fields["Subject"] for patch in patches)
    seen: dict[bytes, str] = {}
    for patch in patches:
        path = f"patches/{patch.name}"
        if subjects[patch.fields["Subject"]] > 1:
            yield Finding(path, "duplicate", "another patch has this subject")
        first = seen.setdefault(patch.plain_diff(), patch.name)
        if first != patch.name:
            yield Finding(path, "duplicate", f"its diff is that of {first}")


def _overlays(
    project: Project,
    overlays: dict[str, overlay.OverlayFile],
    upstream: frozenset[str] | None,
) -> Iterator[Finding]:
    for target, file in overlays.items():
        path = file.source.relative_to(project.root).as_posix()
        if upstream and target in upstream:
            yield Finding(path, "overlay", f"upstream has {target} of its own")
        if file.source.suffix in _OWN_SOURCE:
            data = file.source.read_bytes()
            if data.strip() and b"SPDX-License-Identifier: " not in data[:400]:
                yield Finding(path, "header", "no SPDX-License-Identifier at its top")
    if upstream is None:
        message = "upstream's files are not known yet: run apply first"
        yield Finding("upstream/pin.toml", "overlay", message, fatal=False)


def _names(
    project: Project,
    patches: list[Patch],
    overlays: dict[str, overlay.OverlayFile],
    upstream: frozenset[str] | None,
) -> Iterator[Finding]:
    """Find added files whose names not every file system can hold."""
    owners = {
        target: file.source.relative_to(project.root).as_posix()
        for target, file in overlays.items()
    }
    for patch in patches:
        owners |= {path: f"patches/{patch.name}" for path in _added(patch)}
    # Lower case → the names that have it, folders too.
    spelled: dict[str, set[str]] = {}
    for path in (*(upstream or ()), *owners):
        for part in (path, *map(str, PurePosixPath(path).parents)):
            spelled.setdefault(part.lower(), set()).add(part)
    for path, owner in owners.items():
        if why := _unportable(path):
            yield Finding(owner, "name", f"{path} {why}")
        for part in (path, *map(str, PurePosixPath(path).parents)):
            if others := spelled[part.lower()] - {part}:
                clash = f"{part} differs only in case from {min(others)}"
                yield Finding(owner, "name", clash)


def _unportable(path: str) -> str:
    """Return why a path cannot stand on every file system; "" if it can.

    >>> _unportable("vllm/aux.py"), _unportable("vllm/auxiliary.py")
    ('has the name aux, which Windows reserves', '')
    """
    for part in path.split("/"):
        stem = part.split(".")[0]
        if stem.lower() in _RESERVED:
            return f"has the name {stem}, which Windows reserves"
        if _UNPORTABLE.search(part) or part.endswith((" ", ".")):
            return "has a character that Windows does not allow there"
    return f"is longer than {_LONGEST}" if len(path) > _LONGEST else ""


def _added(patch: Patch) -> Iterator[str]:
    """Return the files that a patch adds."""
    for part in patch.diff.split(b"\ndiff --git ")[:]:
        head = part.split(b"\n@@ ")[0]
        if b"\nnew file mode " in head:
            text = part if part.startswith(b"diff --git ") else b"diff --git " + part
            yield from Patch(patch.name, patch.fields, "", text).paths()
