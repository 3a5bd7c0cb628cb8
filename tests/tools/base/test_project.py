"""Folders that cannot be written are named, with the option for another one."""

import pytest
from checkout import Checkout

READ_ONLY = "/proc/nowhere"  # for root too, as a read-only checkout is


@pytest.mark.parametrize("command", [["apply"], ["pop"], ["pin", "1.0"]])
def test_build_folder_that_cannot_be_written_names_the_option(
    checkout: Checkout, command: list[str]
) -> None:
    done = checkout.cli("--build", READ_ONLY, *command)
    assert done.returncode == 1
    assert f"the build folder {READ_ONLY} cannot be written" in done.stderr
    assert "--build DIR" in done.stderr


def test_cache_that_cannot_be_written_names_the_variable(checkout: Checkout) -> None:
    env = {"TAGMA_CACHE": READ_ONLY}
    fresh = str(checkout.project.root.parent / "fresh")
    done = checkout.cli("--build", fresh, "apply", env=env)
    assert done.returncode == 1
    assert f"the download cache {READ_ONLY}" in done.stderr
    assert "TAGMA_CACHE=DIR" in done.stderr
    file = str(checkout.sdist)
    done = checkout.cli("pin", "1.0.post1", "--sdist", file, env=env)
    assert done.returncode == 1 and "TAGMA_CACHE=DIR" in done.stderr
