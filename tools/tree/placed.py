"""A patch at its place in a tree, so that it can be merged elsewhere."""

from dataclasses import dataclass

from tools.base.git import Repository
from tools.tree.patch import Patch


@dataclass(frozen=True)
class PlacedPatch:
    """A patch and the trees between which it is the difference.

    Args:
        patch: The patch.
        before: Git tree id without it.
        after: Git tree id with it.
    """

    patch: Patch
    before: str
    after: str

    @classmethod
    def of_commit(
        cls, repository: Repository, patch: Patch, commit: str
    ) -> "PlacedPatch":
        """Return a patch where a commit of the tree has it."""
        before, after = map(repository.tree_of, (f"{commit}^", commit))
        return cls(patch, before, after)
