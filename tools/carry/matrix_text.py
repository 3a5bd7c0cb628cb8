"""The matrix as Markdown."""

from tools.carry.matrix import Matrix


def markdown(matrix: Matrix) -> str:
    """Return the table and what stops patches, for people."""
    versions = [column.version for column in matrix.columns]
    lines = [
        "# Where the series lands",
        "",
        f"The series of {matrix.pinned}, carried to each release by three-way merges.",
        "",
        f"| patch | {' | '.join(versions)} |",
        f"| --- |{' --- |' * len(versions)}",
    ]
    for number, name in enumerate(matrix.patches):
        cells = [column.cells[number].landing.value for column in matrix.columns]
        lines.append(f"| {name.removesuffix('.patch')} | {' | '.join(cells)} |")
    laid = [column.overlays for column in matrix.columns]
    lines.append(f"| overlays | {' | '.join(laid)} |")
    shares = [f"{matrix.share([version]):.0%}" for version in versions]
    lines.append(f"| nobody need act | {' | '.join(shares)} |")
    broken = [str(len(column.broken)) for column in matrix.columns]
    lines.append(f"| uses by overlays that break | {' | '.join(broken)} |")
    lines += ["", "## What stops patches"]
    for column in matrix.columns:
        lines += [
            f"\n{column.version}: an overlay would replace upstream's `{path}`, so no "
            "rebase to it begins."
            for path in column.replaced
        ]
        for name, cell in zip(matrix.patches, column.cells, strict=True):
            if not cell.good:
                lines += ["", f"{column.version}, {name}:", "", "```text"]
                lines += [*cell.details, "```"]
    lines += ["", "## What overlays miss", ""]
    for column in matrix.columns:
        for used in column.broken:
            why = f": {used.why}" if used.why else ""
            lines.append(
                f"- {column.version}: `{used.use.target}` ({used.fate.value}"
                f"{why}), used by {used.use.file}"
            )
    return "\n".join(lines) + "\n"
