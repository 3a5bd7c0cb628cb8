"""Recorded traces, and those that cannot be read."""

from pathlib import Path

import pytest
from traces import AZURE, MOONCAKE

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.replay.trace import Replay, Trace


def test_mooncakes_hash_ids_become_hashes_of_blocks(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE)
    source = Replay(Trace.read(path), 16)
    first, second = source.next(0), source.next(0)
    assert first and second and source.ended
    assert (len(first.hashes), len(second.hashes)) == (1120 // 16, 1031 // 16)
    # 512-token ids 7 and 8 are shared: 64 blocks; what is generated is not.
    assert first.hashes[:64] == second.hashes[:64] == list(range(7 * 32, 9 * 32))
    assert not set(first.hashes[64:]) & set(second.hashes[64:])
    assert len(set(first.hashes)) == len(first.hashes)


def test_azures_table_has_lengths_and_no_contents(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    trace = Trace.read(path, limit=1)
    assert trace.records == ((4808, 10, ()),)
    assert not trace.has_contents


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.jsonl", None, "there is no trace at"),
        ("trace.txt", "", ".txt is no known kind"),
        ("broken.jsonl", "{", "not a trace that can be read"),
        ("other.csv", "a,b\n1,2\n", "ContextTokens"),
        ("empty.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
    ],
)
def test_a_bad_trace_is_named(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ToolError, match=message) as raised:
        Trace.read(path)
    assert raised.value.outcome is Outcome.BAD_TRACE
    assert raised.value.next_steps
