"""The port that a server of ours listens on."""

import socket

from tools.base.errors import ToolError
from tools.base.outcome import Outcome

ADDRESS = "127.0.0.1"


def choose_port(wanted: int | None, usual: int = 0) -> int:
    """Return a port to listen on.

    Args:
        wanted: The port that the user named.
        usual: Without one, take this if it is free; 0 takes any free port.

    Raises:
        ToolError: The user's port is taken.
    """
    if wanted is not None:
        if not _is_free(wanted):
            raise ToolError(
                Outcome.COMMAND_FAILED,
                f"port {wanted} of {ADDRESS} is taken",
                ("Leave --port out for a free one, or stop what listens there",),
            )
        return wanted
    if usual and _is_free(usual):
        return usual
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return False
    return True
