"""Draws the ratios to stock in a benchmark's result, a panel for each of its tables.

    python benchmarks/plots.py benchmarks/results/worker.json worker.svg

``docs/conf.py`` draws the pictures of the docs when they are built; the extra `docs` has
matplotlib.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from compare import STOCK, kept
from matplotlib import rc_context
from matplotlib.figure import Figure

#: Units of tables that get a panel: the commands per job are the same in each run, and get none.
DRAWN = ("jobs/s", "us per job")


def draw(results: Path, picture: Path) -> None:
    """Draw one file of results."""
    tables = [table for table in kept(results) if any(STOCK in row.values for row in table.rows)]
    panels = [table for table in tables if table.unit in DRAWN] or tables
    heights = [len(table.rows) for table in panels]
    figure = Figure(figsize=(8, 1 + 0.34 * sum(heights) + 0.7 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for table, axis in zip(panels, axes, strict=True):
        # A contender of one case only would stretch the scale of all.
        everywhere = set.intersection(*(set(row.values) for row in table.rows))
        names = [name for name in table.rows[0].values if name in everywhere - {STOCK}]
        thick = 0.8 / len(names)
        for at, name in enumerate(names):
            ratios = [(n, row.ratio(name)) for n, row in enumerate(table.rows)]
            found = [(n + thick * (at - (len(names) - 1) / 2), r) for n, r in ratios if r]
            bars = axis.barh(*zip(*found, strict=True), thick, label=name)
            axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        axis.axvline(1, color="grey", linewidth=1)
        axis.set_yticks(range(len(table.rows)), [row.case for row in table.rows], fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"{table.title} ({table.unit}, stock = 1)", fontsize=9)
        axis.legend(fontsize=7)
    picture.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, help="what a benchmark wrote by --json")
    parser.add_argument("picture", type=Path, help="the SVG to write")
    args = parser.parse_args()
    draw(args.results, args.picture)
