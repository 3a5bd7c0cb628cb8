"""A server's log is cut down to what went wrong."""

import pytest

from tools.serve.log import error_lines


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (
            "(Worker pid=7) ERROR 11-29 19:00:58 [multiproc_executor.py:1063] "
            "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).\n"
            "(EngineCore pid=3) INFO 11-29 19:00:59 [core.py:9] shutting down\n"
            "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).\n"
            "KeyboardInterrupt: terminated\n",
            ("ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).",),
        ),
        (
            "usage: vllm serve [model_tag] [options]\n"
            "vllm serve: error: argument --kv-cache-backend: invalid choice: 'foo' "
            "(choose from 'paged', 'tagma')\n",
            (
                "vllm serve: error: argument --kv-cache-backend: invalid choice: "
                "'foo' (choose from 'paged', 'tagma')",
            ),
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
            "VllmConfig\n  Value error, tagma needs one group [type=value_error]\n"
            "    For further information visit the documentation\n",
            (
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
                "VllmConfig",
                "  Value error, tagma needs one group [type=value_error]",
            ),
        ),
        ("one\n\ntwo\nthree\nfour\nfive\n", ("two", "three", "four", "five")),
        ("", ()),
    ],
)
def test_error_lines_are_the_messages(log: str, lines: tuple[str, ...]) -> None:
    assert error_lines(log) == lines
