"""Other releases of the tiny upstream, in the cache and in releases.toml."""

import shutil

from checkout import CORE, FILES, Checkout, make_sdist, tree_id

# Conflicts with the first patch.
CONFLICT = {"vllm/core.py": CORE.replace("total += 2", "total += 20")}


def release(checkout: Checkout, changes: dict[str, str | None], version: str = "2.0"):
    """Make another release: the files of 1.0 with changes; None deletes a file."""
    files = {k: v for k, v in FILES.items() if changes.get(k, "") is not None}
    files |= {k: v.encode() for k, v in changes.items() if v is not None}
    project = checkout.project
    made = project.root.parent / f"{project.root.name}-{version}.tar.gz"
    sha256 = make_sdist(made, files)
    kept = project.cache / "files" / sha256 / f"vllm-{version}.tar.gz"
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(made, kept)
    tree = tree_id(project.root.parent / f"{project.root.name}-{version}-tree", files)
    with project.releases_file.open("a") as file:
        file.write(
            f'["{version}"]\nsha256 = "{sha256}"\ntree = "{tree}"\ncommit = "abc"\n'
        )
