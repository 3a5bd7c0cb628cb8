"""What keeps a file from being read as the text that it should be."""

import codecs
import re

# Of a conflict that git left: a label follows all but the middle one. A file may
# use the middle one as an underline, so it needs a look at the line above.
_MARK = re.compile(rb"(<{7}|>{7}|\|{7})( .*)?\r?")
_MIDDLE = re.compile(rb"={7}\r?")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def flaw(data: bytes) -> str:
    r"""Return why a file of these tools cannot be read; "" if it can.

    >>> flaw(b"fine"), flaw(b"one\r\ntwo")
    ('', 'it has CRLF line ends: save it with LF')
    """
    if data.startswith(_UTF16):
        return "it is UTF-16: save it as UTF-8"
    if data.startswith(codecs.BOM_UTF8):
        return "it begins with a byte-order mark: save it as UTF-8 without one"
    if line := conflict_line(data):
        return f"line {line} is the mark of a conflict: solve it"
    before, nul, _ = data.partition(b"\0")
    if nul:
        return f"line {_number(before)} has a NUL byte"
    if data.partition(b"\n")[0].endswith(b"\r"):
        return "it has CRLF line ends: save it with LF"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"line {_number(data[: error.start])} is not UTF-8"
    return ""


def _number(before: bytes) -> int:
    """Return the number of the line on which a text ends."""
    return before.count(b"\n") + 1


def conflict_line(data: bytes) -> int:
    r"""Return the first line, from 1, that marks a conflict; 0 if none does.

    >>> conflict_line(b"one\n<<<<<<< ours\n"), conflict_line(b"Example\n=======\n")
    (2, 0)
    """
    above = b""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if _MARK.fullmatch(line) or (_MIDDLE.fullmatch(line) and not _title(above)):
            return number
        above = line
    return 0


def _title(line: bytes) -> bool:
    """Whether seven signs below a line underline it: they are not too short."""
    text = line.rstrip().decode("utf-8", "replace")
    return 0 < len(text) <= 7 and not text[0].isspace() and not _MARK.fullmatch(line)
