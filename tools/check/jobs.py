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
        writes: Files of build/ that no other job may write meanwhile, and SHARED things
            that no two jobs may hold at a time.
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


_TREE, _BUILT = ("apply",), ("apply", "build")
_LOCK = ".lock"
# Servers whose clients wait for them only so long: not two sets of them at a time.
_SERVERS = "servers"
SHARED = (_LOCK, _SERVERS)

# In the order in which they begin, as far as what they need is there: cheap ones
# first, so that a mistake shows early, then long ones, so that none is left alone at
# the end.
_TABLE = (
    Job("apply", (("apply",),), writes=(_LOCK, "tree"), seconds=20),
    Job("series", (("export", "--check"), ("lint",)), _TREE, (_LOCK,), seconds=5),
    Job("lint", (("style",),), _TREE, (_LOCK,), seconds=10),
    Job("build", (("build",),), _TREE, (_LOCK, "venv", "wheel", "ext"), seconds=120),
    Job(
        "engine",
        (("check-engine", "--workers", WORKERS), ("audit",)),
        writes=("engine-tests", "engine-binding", "googletest"),
        seconds=170,
        workers=4,
    ),
    Job(
        "tools",
        (("suite", "tools", "--workers", WORKERS, "--", ARGUMENTS),),
        _BUILT,
        seconds=320,
        workers=4,
    ),
    Job(
        "overlay",
        (("suite", "overlay", "--workers", WORKERS, "--", ARGUMENTS),),
        _BUILT,
        ("overlay-tests",),
        seconds=230,
        workers=4,
    ),
    Job(
        "next",
        (("rehearse", "0.33.0", "--workers", WORKERS, "--", ARGUMENTS),),
        _BUILT,
        ("rehearsal",),
        seconds=260,
        workers=4,
    ),
    Job("demo", (("demo",),), _BUILT, ("demo",), seconds=240),
    Job(
        "demo-pd",
        (("bench-transfer", "--quick"), ("demo-pd", "--quick")),
        _BUILT,
        ("demo-pd", "transfer", "mooncake", _SERVERS),
        seconds=300,
        workers=2,
    ),
    Job(
        "demo-lmcache",
        (("demo-lmcache", "--quick"),),
        _BUILT,
        ("demo-lmcache", "lmcache", _SERVERS),
        seconds=170,
        workers=2,
    ),
    Job(
        "host",
        (("bench-host", "--rounds", "9"), ("soak", "--steps", "10000")),
        _BUILT,
        ("bench",),
        seconds=45,
    ),
    Job(
        "upstream",
        (("suite", "upstream", "--", ARGUMENTS),),
        _BUILT,
        ("upstream-tests",),
        seconds=75,
    ),
    # One seed: a job must not fail by luck. `make fuzz` takes others.
    Job(
        "fuzz",
        (("fuzz", "--install", "--seconds", "60", "--seed", "1"),),
        (),
        (_LOCK, "engine-fuzz"),
        seconds=90,
    ),
)
# What several jobs begin with, run once and before them.
PREPARATIONS = tuple(job for job in _TABLE if job.name in _BUILT)
JOBS = tuple(job for job in _TABLE if job.name not in _BUILT)
NAMES = tuple(job.name for job in JOBS)

# What a change of one part can break.
GROUPS = {
    "tooling": ("series", "lint", "tools"),
    "native": ("lint", "engine", "fuzz", "overlay"),
    "backend": (
        *("series", "lint", "overlay", "host", "upstream", "next", "demo"),
        *("demo-pd", "demo-lmcache"),
    ),
}


def chosen(names: tuple[str, ...]) -> list[Job]:
    """Return the jobs of some names and groups, each once; no name: all of them."""
    wanted = {part for name in names for part in GROUPS.get(name, (name,))}
    return [job for job in JOBS if job.name in wanted or not names]


def with_preparations(jobs: list[Job]) -> list[Job]:
    """Return jobs and the preparations that they need, in the table's order."""
    needed = {name for job in jobs for name in job.needs}
    steps = [step for step in PREPARATIONS if step.name in needed]
    order = [job.name for job in _TABLE]
    return sorted([*steps, *jobs], key=lambda job: order.index(job.name))
