"""Which author, subject and message come out of a mail as they went in.

`git am` reads a patch file as a mail, and `git commit` reads what it gave when it is
reworded; both drop or change some text. See git's mailinfo.c, mailsplit.c, ident.c.
"""

import re
from collections.abc import Iterator

_AUTHOR = re.compile(
    r"[^\s(.,:;<>@\"'\\](?:[^<>@\"\\]*[^\s.,:;<>@\"'\\])? <[^<>\s\"\\]+@[^<>\s\"\\]+>"
)
_IN_PARENTHESES = re.compile(r"\([^()]*\)")
_NAME_BYTES = range(3, 61)
_ENCODED = "=?"
_SPACES = re.compile(r"[ \t\v\f\r\n]+")
_MANGLED = {
    re.compile(r"---(\s*| \S.*)"): "ends the message",
    re.compile(r"(diff -|Index: ).*"): "is taken for the start of the diff: indent it",
    re.compile(r">?From .*"): "is taken for the start of another mail",
    re.compile(r"#.*"): "is dropped as a comment when the commit is reworded",
    re.compile(r".*\r.*"): "has a carriage return",
    re.compile(r".*\s"): "has white space at its end",
}
_IN_BODY = re.compile(r"(?i)(From|Subject|Date):.*|\[PATCH\].*")


def author_flaws(author: str) -> Iterator[str]:
    """Find why a line `From` would not give this author."""
    name = author.partition(" <")[0]
    if (
        not _AUTHOR.fullmatch(author)
        or _ENCODED in author
        or not author.isprintable()
        or set("()") & set(_IN_PARENTHESES.sub("", name))
        or _SPACES.sub(" ", name) != name
    ):
        yield "From is not `Name <address>` as git keeps it"
    elif len(name.encode()) not in _NAME_BYTES:
        yield "From: git am keeps no name shorter than 3 or longer than 60 bytes"


def subject_flaws(subject: str) -> Iterator[str]:
    """Find why a line `Subject` would not give this subject."""
    if re.match(r"(?i)\[|re:|:", subject):
        yield f"git am strips the start of {subject!r}"
    if not subject:
        yield "the subject is empty"
    if _ENCODED in subject or _SPACES.sub(" ", subject).strip() != subject:
        yield f"git am does not keep the signs or spaces of {subject!r}"


def body_flaws(body: str) -> Iterator[tuple[int, str]]:
    """Find lines, counted from 1, that would not stay in the message."""
    lines = body.split("\n")
    for number, line in enumerate(lines, start=1):
        for pattern, why in _MANGLED.items():
            if pattern.fullmatch(line):
                yield number, f"{line!r} {why}"
        alone = number == 1 or not lines[number - 2] or number == len(lines)
        if not line and alone:
            yield number, "git am drops this blank line"
    if _IN_BODY.fullmatch(lines[0]):
        yield 1, f"{lines[0]!r} is taken for a header"
