"""How a soak's output is read; `ci/host` runs a real one."""

import json

from tools.measure.soak import Soaked

CHECK = {"step": 1000, "usage": 0.98, "rss_kib": 500_000}
VERDICT = {"steps": 2000, "problems": ["3 blocks leaked"]}


def test_lines_become_checks_and_a_verdict_and_count_steps():
    soaked = Soaked()
    lines = (CHECK, CHECK | {"step": 2000}, VERDICT)
    steps = [soaked.read(json.dumps(line) + "\n") for line in lines]
    assert steps == [1000, 1000, 0]
    assert [check["step"] for check in soaked.checks] == [1000, 2000]
    assert soaked.problems == ("3 blocks leaked",)


def test_a_log_line_is_no_check():
    soaked = Soaked()
    assert soaked.read("nanobind: leaked 4 instances!\n") == 0
    assert soaked.to_data() == {"checks": [], "verdict": None}


def test_too_few_steps_are_a_usage_error(checkout):
    done = checkout.cli("soak", "--steps", "10")
    assert done.returncode == 2
    assert "--steps" in done.stderr
