"""The jobs of `make test`: what each runs, what it needs and what it writes."""

from dataclasses import dataclass

# Stand in a command for the cores that the job was given, and for the user's words.
WORKERS, ARGUMENTS = "{workers}", "{arguments}"


@dataclass(frozen=True)
class Job:
    """Commands that run one after the other, beside those of other jobs.

    Args:
        name: Its name, and that of its script in ci/.
        commands: What to run, each the words behind `python -m tools`.
        needs: The jobs that must have passed before it begins.
        writes: Folders of build/ that no other job may write meanwhile. All jobs read
            build/tree and build/venv, which only those that they need write.
        seconds: What it takes on an idle core; nothing is judged by it.
        workers: The most cores that it can use.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    seconds: int = 1
    workers: int = 1

    @property
    def takes_arguments(self) -> bool:
        """Whether the user's words go to one of its commands."""
        return any(ARGUMENTS in command for command in self.commands)

    def resolved(self, workers: int, arguments: tuple[str, ...]) -> list[list[str]]:
        """Return its commands for a number of cores and the user's words."""
        return [
            [
                word.replace(WORKERS, str(workers))
                for part in command
                for word in (arguments if part == ARGUMENTS else (part,))
            ]
            for command in self.commands
        ]


# What several jobs begin with, run once and first.
PREPARATIONS = (
    Job("apply", (("apply",),), writes=("tree",), seconds=20),
    Job("build", (("build",),), ("apply",), ("venv", "wheel", "ext"), seconds=120),
)
_TREE, _VENV = ("apply",), ("apply", "build")

# In the order in which they begin, as far as what they need is there: cheap ones
# first, so that a mistake shows early, then long ones, so that none is left alone at
# the end.
JOBS = (
    Job("series", (("export", "--check"), ("lint",)), _TREE, seconds=5),
    Job("lint", (("style",),), _TREE, seconds=25),
    Job(
        "tools",
        (("suite", "tools", "--workers", WORKERS, "--", ARGUMENTS),),
        _TREE,
        seconds=400,
        workers=8,
    ),
    Job(
        "overlay",
        (("suite", "overlay", "--workers", WORKERS, "--", ARGUMENTS),),
        _VENV,
        ("overlay-tests",),
        seconds=400,
        workers=4,
    ),
    Job(
        "next",
        (("rehearse", "0.33.0", "--workers", WORKERS, "--", ARGUMENTS),),
        _VENV,
        ("rehearsal",),
        seconds=400,
        workers=4,
    ),
    Job("demo", (("demo",),), _VENV, ("demo",), seconds=240),
    Job(
        "engine",
        (("check-engine", "--workers", WORKERS), ("audit",)),
        _TREE,
        ("engine-tests", "engine-binding", "googletest"),
        seconds=210,
        workers=4,
    ),
    Job(
        "host",
        (("bench-host", "--rounds", "9"), ("soak", "--steps", "10000")),
        _VENV,
        ("bench",),
        seconds=100,
    ),
    # One seed: a job must not fail by luck. `make fuzz` takes others.
    Job(
        "fuzz",
        (("fuzz", "--install", "--seconds", "60", "--seed", "1"),),
        (),
        ("engine-fuzz",),
        seconds=90,
    ),
    Job(
        "upstream",
        (("suite", "upstream", "--", ARGUMENTS),),
        _VENV,
        ("upstream-tests",),
        seconds=90,
    ),
)
NAMES = tuple(job.name for job in JOBS)

# What a change of one part can break.
GROUPS = {
    "tooling": ("series", "lint", "tools"),
    "native": ("lint", "engine", "fuzz", "overlay"),
    "backend": ("series", "lint", "overlay", "host", "upstream", "next", "demo"),
}


def chosen(names: tuple[str, ...]) -> list[Job]:
    """Return the jobs of some names and groups, each once; no name: all of them."""
    wanted = {part for name in names for part in GROUPS.get(name, (name,))}
    return [job for job in JOBS if job.name in wanted or not names]


def with_preparations(jobs: list[Job]) -> list[Job]:
    """Return jobs behind the preparations that they need."""
    needed = {name for job in jobs for name in job.needs}
    return [*(step for step in PREPARATIONS if step.name in needed), *jobs]
