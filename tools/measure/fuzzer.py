"""The libFuzzer target of the engine: compile, run, and keep what it found."""

import os
import re
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import Completed, find_program, run, run_watched
from tools.base.project import Project
from tools.compile import cmake

_TARGET = "kv_allocator_fuzz"
# Long enough to fill a pool, short enough for a thousand runs a second.
_MAX_BYTES = 1024

_PROBE = b"""\
extern "C" int LLVMFuzzerTestOneInput(const char *, unsigned long) { return 0; }
"""
_STATUS = re.compile(r"^#\d+\s.*\bcov: (\d+) ft: (\d+) corp: (\d+)/")
_STATISTIC = re.compile(r"^stat::(\w+):\s+(\d+)")
_CRASH_FILE = re.compile(r"Test unit written to (\S+)")
_FINDING = re.compile(r"^step \d+: |ERROR: |SUMMARY: |runtime error: ")


@dataclass
class Fuzzed:
    """What a run came to.

    Args:
        seconds: How long it was to run.
        runs: Inputs that were tried.
        edges: Edges of the control flow that were reached.
        features: Edges, told apart by how often they were passed.
        inputs: Inputs in the corpus, each with a feature of its own.
        crash: The input that broke a promise, if one did.
        findings: What the target and the sanitizers said about it.
    """

    seconds: int
    runs: int = 0
    edges: int = 0
    features: int = 0
    inputs: int = 0
    crash: str | None = None
    findings: tuple[str, ...] = ()

    def read(self, line: str) -> None:
        """Take in a line of libFuzzer's output."""
        if found := _STATUS.match(line):
            self.edges, self.features, self.inputs = map(int, found.groups())
        elif (found := _STATISTIC.match(line)) and found[1] == (
            "number_of_executed_units"
        ):
            self.runs = int(found[2])
        elif found := _CRASH_FILE.search(line):
            self.crash = found[1]
        elif _FINDING.search(line):
            self.findings += (line.strip(),)

    def to_data(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Fuzzer:
    """The compiled target.

    Args:
        program: Its file.
        seeds: The committed corpus.
        found: The corpus that runs on this machine add to.
        log: What the last run printed.
    """

    program: Path
    seeds: Path
    found: Path
    log: Path

    @classmethod
    def build(cls, project: Project) -> "Fuzzer":
        """Compile the target.

        Raises:
            ToolError: clang or its fuzzer library is missing, or the compilation
                fails.
        """
        compiler = _require_clang()
        folder = cmake.build(project, "fuzz", f"CMAKE_CXX_COMPILER={compiler}")
        found = folder / "corpus"
        found.mkdir(exist_ok=True)
        seeds = project.root / "csrc_tagma" / "fuzz" / "corpus"
        return cls(folder / _TARGET, seeds, found, project.build / "logs" / "fuzz.log")

    def run(self, seconds: int, seed: int = 0) -> Fuzzed:
        """Fuzz for some time, beginning with both corpora.

        Args:
            seconds: How long.
            seed: Of the random inputs; 0: another one each time.

        Raises:
            ToolError: The target stopped for another reason than a finding.
        """
        fuzzed = Fuzzed(seconds)
        with console.step("fuzz the engine", seconds) as step:
            last = time.monotonic()

            def read(line: str) -> None:
                nonlocal last
                fuzzed.read(line)
                step.advance(-last + (last := time.monotonic()))

            try:
                run_watched(
                    [
                        self.program,
                        self.found,
                        self.seeds,
                        f"-max_total_time={seconds}",
                        f"-seed={seed}",
                        f"-max_len={_MAX_BYTES}",
                        f"-artifact_prefix={self.found.parent}/",
                        "-print_final_stats=1",
                    ],
                    output=self.log,
                    on_line=read,
                )
            except ToolError:
                if not fuzzed.crash:
                    raise
        return fuzzed

    def save(self) -> int:
        """Make the committed corpus a small one that reaches what both reach.

        Returns:
            How many inputs it has.

        Raises:
            ToolError: The target fails on one of them.
        """
        merged = self.found.parent / "merged"
        shutil.rmtree(merged, ignore_errors=True)
        merged.mkdir()
        # By edges alone: telling them apart by how often they were passed takes
        # ten times as many inputs, which the next run finds by itself.
        by_edges = ("-set_cover_merge=1", "-use_counters=0", "-use_cmp=0")
        run([self.program, *by_edges, merged, self.seeds, self.found])
        shutil.rmtree(self.seeds)
        shutil.copytree(merged, self.seeds)
        return len(list(self.seeds.iterdir()))


def is_available() -> bool:
    """Whether there is a clang++ with libFuzzer."""
    compiler = find_program("clang++")
    return compiler is not None and _probe(compiler).status == 0


def _probe(compiler: Path) -> Completed:
    """Link an empty target."""
    return run(
        [compiler, "-fsanitize=fuzzer,address", "-x", "c++", "-", "-o", os.devnull],
        stdin=_PROBE,
        check=False,
    )


def _require_clang() -> Path:
    """Return a clang++ that has libFuzzer.

    Raises:
        ToolError: There is none.
    """
    compiler = find_program("clang++")
    if not compiler:
        raise ToolError(
            Outcome.MISSING_TOOL,
            "clang++ is not installed, and libFuzzer is a part of clang",
            ("Install it, for example: apt-get install clang libclang-rt-14-dev",),
        )
    probe = _probe(compiler)
    if probe.status != 0:
        version = run([compiler, "-dumpversion"], check=False).text.split(".")[0]
        raise ToolError(
            Outcome.MISSING_TOOL,
            f"{compiler} cannot link libFuzzer",
            (f"Install it, for example: apt-get install libclang-rt-{version}-dev",),
            tuple(probe.error_text.splitlines()[-3:]),
        )
    return compiler
