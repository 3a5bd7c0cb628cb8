"""A patch's header: author and message, as a mail that `git am` reads.

    From: A. Author <author@example.com>
    Subject: core: what it does

    Why it is needed.

    Origin: vendor
    …
    Signed-off-by: A. Author <author@example.com>
    ---

The last paragraph holds the DEP-3 fields and whatever git appends there. The text
is the commit's message as it stands, so nothing of it can be lost on the way.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import takewhile

from tools.base import text
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.tree import mail

# The fields that each patch must have in its last paragraph, as a new one has them.
DEFAULTS = {
    "Origin": "vendor",
    "Forwarded": "no",
    "Upstream-Status": "Pending",
    "Last-Update": "",
    "SPDX-License-Identifier": "Apache-2.0",
}
FIELDS = tuple(DEFAULTS)
BACKPORT = "backport"  # the Origin of somebody else's change
_IN_HEAD = ("From", "Subject")
_FORM = re.compile(r"From: ([^\n]*)\nSubject: ([^\n]*)\n\n((?s:.)+)\n---\n")
_FIELD = re.compile(r"([A-Za-z][A-Za-z0-9-]*): (.+)")
_PICKED = re.compile(r"^\(cherry picked from commit ([0-9a-f]{7,40})\)$", re.MULTILINE)
_TRAILER = re.compile(rf"{_FIELD.pattern}|\(cherry picked from .+\)|[ \t].+")


@dataclass(frozen=True)
class Header:
    """What stands before the diff.

    Args:
        author: `Name <address>`.
        subject: The first line of the message.
        body: The rest of the message, without blank lines around it.
    """

    author: str
    subject: str
    body: str

    @classmethod
    def parse(cls, name: str, head: bytes) -> "Header":
        """Parse the text before the diff; `render` of the result is that text.

        Raises:
            ToolError: It lacks something, or git would not keep it as it is.
        """
        for line, why in flaws(head):
            raise _bad(name, f"line {line}: {why}" if line else why)
        match = _FORM.fullmatch(head.decode("utf-8"))
        assert match
        return cls(*match.groups())

    @classmethod
    def of(cls, fields: dict[str, str], description: str) -> "Header":
        """Make a header of fields, `From` and `Subject` among them."""
        trailers = [f"{k}: {v}" for k, v in fields.items() if k not in _IN_HEAD]
        body = _body(description, trailers)
        return cls(fields["From"], fields["Subject"], body)

    @classmethod
    def from_message(cls, author: str, message: str) -> "Header":
        """Take the header of a commit.

        Raises:
            ToolError: The message lacks a field, or cannot stand in a patch.
        """
        subject, _, rest = message.strip("\n").partition("\n")
        header = cls(author, subject, rest.strip("\n"))
        if missing := header.missing:
            raise ToolError(
                Outcome.BAD_PATCH,
                f"the commit {subject!r} lacks the trailers {', '.join(missing)}",
                (f"Add them, if it is the last one: {_add(missing, header.body)}",),
            )
        head = header.render().encode("utf-8", "surrogateescape")
        for _, why in flaws(head):
            raise ToolError(
                Outcome.BAD_PATCH,
                f"the commit {subject!r} cannot be a patch: {why}",
                ("Reword it: git commit --amend, or git rebase --interactive",),
            )
        return header

    def render(self) -> str:
        """Return the text before the diff."""
        return f"From: {self.author}\nSubject: {self.subject}\n\n{self.body}\n---\n"

    @property
    def message(self) -> str:
        """The commit's message, for `from_message`."""
        return f"{self.subject}\n\n{self.body}\n"

    @property
    def description(self) -> str:
        """The body without its last paragraph."""
        return self.body.rpartition("\n\n")[0]

    @property
    def trailers(self) -> tuple[str, ...]:
        """The lines of the last paragraph."""
        return tuple(self.body.rpartition("\n\n")[2].split("\n"))

    @property
    def fields(self) -> dict[str, str]:
        """Author, subject and the trailers by name; of a repeated one the last."""
        found = {"From": self.author, "Subject": self.subject}
        matches = map(_FIELD.fullmatch, self.trailers)
        return found | {match[1]: match[2] for match in matches if match}

    @property
    def missing(self) -> tuple[str, ...]:
        """The fields that it should have."""
        return tuple(field for field in FIELDS if field not in self.fields)

    def with_field(self, key: str, value: str) -> "Header":
        """Return the header with another value of a field that it has."""
        lines = [
            f"{key}: {value}" if line.startswith(f"{key}: ") else line
            for line in self.trailers
        ]
        return replace(self, body=_body(self.description, lines))

    def with_description(self, description: str) -> "Header":
        """Return the header with another description."""
        return replace(self, body=_body(description, self.trailers))


def _body(description: str, trailers: Sequence[str]) -> str:
    return "\n\n".join(filter(None, (description, "\n".join(trailers))))


def flaws(head: bytes) -> Iterator[tuple[int, str]]:
    """Find what keeps a text from being a header that git keeps as it is.

    Args:
        head: All that stands before the diff.

    Yields:
        The line, from 1 (0: the header as a whole), and what is wrong with it.
    """
    if why := text.flaw(head):
        yield 0, why
        return
    match = _FORM.fullmatch(head.decode("utf-8"))
    if not match:
        yield _why_no_header(head.decode("utf-8"))
        return
    header = Header(*match.groups())
    yield from ((1, why) for why in mail.author_flaws(header.author))
    yield from ((2, why) for why in mail.subject_flaws(header.subject))
    above = len(_IN_HEAD) + 1
    yield from ((above + line, why) for line, why in mail.body_flaws(header.body))
    if header.missing:
        yield 0, f"its header lacks {', '.join(header.missing)}"
        return
    first = header.render().count("\n") - len(header.trailers)
    for number, line in enumerate(header.trailers, start=first):
        if not _TRAILER.fullmatch(line):
            yield number, f"{line!r} is no field, among fields: put it above them"
    try:
        date.fromisoformat(header.fields["Last-Update"])
    except ValueError:
        yield 0, "Last-Update is not a date (YYYY-MM-DD)"


def _why_no_header(head: str) -> tuple[int, str]:
    """Return where a text stops to have the form of a header, and why."""
    lines = head.split("\n")
    if lines[0].startswith("From "):
        return 1, "this line begins a mailbox, not a patch file: remove it"
    fields = list(takewhile(bool, map(_FIELD.fullmatch, lines)))
    keys = [field[1] for field in fields if field]
    for number, key in enumerate(keys, start=1):
        if key not in _IN_HEAD:
            return number, (
                f"{key} stands above the description, where git am drops it: put it "
                "into the last paragraph"
            )
    if missing := [key for key in _IN_HEAD if key not in keys]:
        return len(keys) + 1, f"its header lacks {', '.join(missing)}"
    if tuple(keys) != _IN_HEAD:
        return 1, "From and Subject must stand there once, in this order"
    if lines[len(keys)]:
        return len(keys) + 1, "a blank line must follow the subject"
    if not head.endswith("\n---\n"):
        return 0, "no line `---` stands right before its `diff --git` line"
    return 0, f"its header lacks {', '.join(FIELDS)}"


def _add(fields: Sequence[str], body: str) -> str:
    """Return the git command that gives the last commit of the tree fields."""
    values = DEFAULTS | {"Last-Update": datetime.now(UTC).date().isoformat()}
    if picked := _PICKED.search(body):
        values["Origin"] = f"{BACKPORT}, {picked[1]}"
    trailers = [f"--trailer '{field}: {values[field]}'" for field in fields]
    return f"git -C build/tree commit --amend --no-edit {' '.join(trailers)}"


def _bad(name: str, why: str) -> ToolError:
    return ToolError(Outcome.BAD_PATCH, f"{name}: {why}", (f"Mend {name}",))
