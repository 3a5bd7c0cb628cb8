"""What a server's log says."""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What vLLM puts before a message: its process, and a level with time and place.
_PREFIX = re.compile(r"^(\(\S+ pid=\d+\) )?([A-Z]+ [\d-]+ [\d:]+ \[[^]]+\] ?)?")
# An exception's last line, what pydantic wraps, and argparse's complaint.
_ERROR = re.compile(r"^([\w.]+(Error|Exception): |  Value error, |[\w. ]+: error: )")


def error_lines(log: str, most: int = 4) -> tuple[str, ...]:
    """Return the lines of a server's log that say what went wrong.

    Those are the messages of the last exceptions, each once, or else the last lines.

    >>> error_lines("(W pid=1) ERROR 01-01 00:00:00 [a.py:1] ValueError: no: it is 2")
    ('ValueError: no: it is 2',)
    """
    lines = [
        _PREFIX.sub("", _COLOUR.sub("", line)).rstrip() for line in log.splitlines()
    ]
    errors = [line for line in lines if _ERROR.match(line)]
    return tuple(dict.fromkeys(errors or filter(None, lines)))[-most:]
