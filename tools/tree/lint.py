"""Checks of patches and overlays that `apply` does not need, but people do."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from tools.base import text
from tools.base.errors import ToolError
from tools.base.project import Project
from tools.source.pin import Pin
from tools.tree import header, names, overlay
from tools.tree.compose import base_reference
from tools.tree.finding import Finding
from tools.tree.patch import Patch, split
from tools.tree.series import Series, listed
from tools.tree.tree import Tree

# Yocto's words for what upstream thinks, and one for what upstream will not get.
_STATUS = (
    *("Pending", "Submitted", "Backport", "Denied", "Inappropriate"),
    "Fork-only",
)
_SIGNATURE = re.compile(rb"\n-- \n[^\n]*\n*\Z")
_OWN_SOURCE = (".py", ".h", ".cpp", ".cu", ".cuh")


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
        findings += _signature(patch)
        findings += _whitespace(patch)
        findings += _contents(patch, overlays)
    findings += _duplicates(patches)
    findings += _numbers(patches)
    findings += _overlays(project, overlays, upstream)
    owners = {target: _shown(project, file) for target, file in overlays.items()}
    for patch in patches:
        owners |= {path: f"patches/{patch.name}" for path in _added(patch)}
    findings += names.check(owners, upstream or ())
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
    text = series.read_text("utf-8", "replace") if series.is_file() else ""
    present = sorted(path.name for path in folder.glob("*.patch"))
    order = [name for name in dict.fromkeys(listed(text)) if name in present]
    patches = []
    for name in order or present:
        read = _read_patch(name, (folder / name).read_bytes())
        if isinstance(read, Patch):
            patches.append(read)
        else:
            findings += read
    return patches, findings


def _read_patch(name: str, data: bytes) -> Patch | list[Finding]:
    path = f"patches/{name}"
    try:
        flaws = list(header.flaws(split(name, data)[0]))
        if flaws:
            return [Finding(path, "header", why, line) for line, why in flaws]
        patch = Patch.parse(name, data)
        list(patch.hunks())
    except ToolError as error:
        return [Finding(path, "header", error.message)]
    return patch


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


def _signature(patch: Patch) -> Iterator[Finding]:
    if _SIGNATURE.search(patch.diff):
        message = "a mail's signature follows the diff"
        yield Finding(f"patches/{patch.name}", "mangled", message)


def _whitespace(patch: Patch) -> Iterator[Finding]:
    path = f"patches/{patch.name}"
    offset = patch.header.render().count("\n")
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


def _numbers(patches: list[Patch]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for patch in patches:
        other = first.setdefault(patch.name[:4], patch.name)
        if other != patch.name:
            message = f"{other} has this number too: python -m tools renumber"
            yield Finding(f"patches/{patch.name}", "number", message)


def _overlays(
    project: Project,
    overlays: dict[str, overlay.OverlayFile],
    upstream: frozenset[str] | None,
) -> Iterator[Finding]:
    for target, file in overlays.items():
        path = _shown(project, file)
        if upstream and target in upstream:
            yield Finding(path, "overlay", f"upstream has {target} of its own")
        data = file.source.read_bytes()
        if line := text.conflict_line(data):
            yield Finding(path, "conflict", "the mark of a conflict", line)
        own = file.source.suffix in _OWN_SOURCE and data.strip()
        if own and b"SPDX-License-Identifier: " not in data[:400]:
            yield Finding(path, "header", "no SPDX-License-Identifier at its top")
    if upstream is None:
        message = "upstream's files are not known yet: run apply first"
        yield Finding("upstream/pin.toml", "overlay", message, fatal=False)


def _shown(project: Project, file: overlay.OverlayFile) -> str:
    return file.source.relative_to(project.root).as_posix()


def _added(patch: Patch) -> Iterator[str]:
    """Return the files that a patch adds."""
    for part in patch.diff.split(b"\ndiff --git ")[:]:
        head = part.split(b"\n@@ ")[0]
        if b"\nnew file mode " in head:
            text = part if part.startswith(b"diff --git ") else b"diff --git " + part
            yield from replace(patch, diff=text).paths()
