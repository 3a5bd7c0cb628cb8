"""Steps of a rebase, as tests take them on a small checkout."""

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from checkout import Checkout

from tools.base import fault
from tools.carry.finish import Finished
from tools.carry.journal import Journal
from tools.carry.rebase import Rebase
from tools.carry.releases import Releases
from tools.source.fetch import Sdist


def put_on(checkout: Checkout, version: str) -> None:
    """Pin another release and take the tree as it comes."""
    pin = checkout.project.pin_file
    pins = Releases.read(checkout.project.releases_file).pins
    pin.write_text(pins[version].to_toml(pin.read_text()))
    with checkout.project.lock():
        checkout.tree.apply(Sdist(checkout.project.cache), relock=True)


def run(checkout: Checkout, step: Callable[[Rebase], Journal | Finished]):
    """Take one step of a rebase; return the journal that it leaves."""
    with checkout.project.lock():
        result = step(Rebase(checkout.project))
    return result.journal if isinstance(result, Finished) else result


def start(checkout: Checkout, version: str = "2.0") -> Journal:
    return run(checkout, lambda rebase: rebase.start(version))


def proceed(checkout: Checkout) -> Journal:
    return run(checkout, Rebase.proceed)


def abort(checkout: Checkout) -> tuple[Path, ...]:
    with checkout.project.lock():
        return Rebase(checkout.project).abort()


def landings(journal: Journal) -> list[str]:
    return [entry.landing.value for entry in journal.done]


def state(checkout: Checkout) -> dict[str, bytes]:
    """Every byte that a user sees: of the project, and of the tree and its commit."""
    root = checkout.project.root
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for name in ("patches", "upstream", "vllm_overlay")
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }
    tree = checkout.tree.repository
    files |= {f"tree/{name}": content for name, content in checkout.files().items()}
    files["commit"] = str(tree.resolve("HEAD")).encode()
    files["edits"] = "\n".join(tree.changed_paths()).encode()
    return files


def work(checkout: Checkout) -> Path:
    """The folder in which the user resolves a conflict."""
    return checkout.project.build / "rebase" / "tree"


def resolve(checkout: Checkout, text: str = "total += 23") -> None:
    """Resolve the conflict of `CONFLICT` as a user would."""
    core = work(checkout) / "vllm/core.py"
    head, _, rest = core.read_text().partition("<<<<<<<")
    tail = rest.partition(">>>>>>>")[2].partition("\n")[2]
    core.write_text(f"{head}    {text}\n{tail}")


def killed(step: Callable[[], object], at: int) -> tuple[bool, int]:
    """Run a step in a process that dies by SIGKILL at a fault point.

    Returns:
        Whether it was killed, and how many points it passed if it was not.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.environ[fault.VARIABLE] = str(at)
            fault._passed = 0
            step()
            os.write(write, str(fault._passed).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as pipe:
        passed = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True, 0
    assert status == 0
    return False, int(passed)


def copy(checkout: Checkout, name: str) -> Checkout:
    """Return a copy of a checkout, whatever state it is in."""
    root = checkout.project.root.with_name(name)
    shutil.copytree(checkout.project.root, root, symlinks=True)
    project = replace(checkout.project, root=root, build=root / "build")
    return Checkout(project, checkout.sdist)


def spread(total: int, count: int = 24) -> list[int]:
    """Return points over the whole run, the first and the last among them."""
    return sorted({1 + round(i * (total - 1) / (count - 1)) for i in range(count)})
