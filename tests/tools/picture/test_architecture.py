"""The pictures of ARCHITECTURE.md are the ones that the command draws."""

import re
import shutil
from pathlib import Path

from checkout import REPOSITORY
from click.testing import CliRunner

from tools.cli.group import main
from tools.picture.architecture import PICTURES


def test_pictures_in_the_repository_are_the_drawn_ones() -> None:
    done = CliRunner().invoke(main, ["picture", "--check"])
    assert done.exit_code == 0, done.output


def test_an_outdated_picture_is_named_and_then_drawn(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / ".github", tmp_path / ".github")
    kept = tmp_path / ".github" / "images" / "patch-flow.svg"
    drawn = kept.read_bytes()
    kept.write_bytes(b"another")
    project = ("--project", str(tmp_path), "picture")
    done = CliRunner().invoke(main, [*project, "--check"])
    assert done.exit_code == 1
    assert "patch-flow.svg" in done.output and "block-flow.svg" not in done.output
    assert CliRunner().invoke(main, project).exit_code == 0
    assert kept.read_bytes() == drawn


def test_paths_that_a_picture_names_exist() -> None:
    for flow in PICTURES.values():
        text = " ".join(line for box in flow.boxes.values() for line in box.lines)
        named = re.findall(r"(?:upstream|tools|tests|patches)/[\w./]+(?!-)\b", text)
        for path in named:
            assert (REPOSITORY / path).exists(), path


def test_arrows_join_boxes_of_the_picture() -> None:
    for flow in PICTURES.values():
        joined = {key for arrow in flow.arrows for key in (arrow.source, arrow.target)}
        assert joined == set(flow.boxes)
