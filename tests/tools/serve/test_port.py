"""The port of a server: the user's, or one that is free."""

import socket

import pytest

from tools.base.errors import ToolError
from tools.serve.port import ADDRESS, choose_port


def test_a_taken_port_is_refused_by_name_and_avoided_without() -> None:
    with socket.socket() as other:
        other.bind((ADDRESS, 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(ToolError, match=f"port {taken} of {ADDRESS} is taken"):
            choose_port(taken)
        assert choose_port(None, usual=taken) not in (0, taken)
    assert choose_port(None, usual=taken) == taken
