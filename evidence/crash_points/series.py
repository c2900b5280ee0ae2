"""List the series of crash points: each has all points of one kind of harm to one shape.

`evidence/crash_points/__init__.py` lists them, `points.py` runs them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from .shapes import HARMS, MOMENTS


@dataclass(frozen=True)
class Series:
    """All points of one side, pool, shape, kind of harm and moment: at command n = 1, 2, 3, ..."""

    side: str
    pool: str
    shape: str
    kind: str
    moment: str

    def point(self, nth: int, fresh: bool = False) -> str:
        """Return the name of a point. The ids of its jobs begin with it."""
        words = (self.side, self.pool, self.shape, self.kind, self.moment, str(nth))
        return "/".join(words).replace(" ", "-") + ("-fresh" if fresh else "")


def all_series(
    sides: Iterable[str],
    pools: Iterable[str],
    shapes: Iterable[str],
    kinds: Iterable[str] = HARMS,
    moments: Iterable[str] = MOMENTS,
) -> list[Series]:
    """Return each combination of these that is possible."""
    every = itertools.product(sides, pools, shapes, kinds, moments)
    # Only a pool of processes has a child that can die alone.
    return [Series(*one) for one in every if one[3] != "child" or one[1] == "prefork"]
