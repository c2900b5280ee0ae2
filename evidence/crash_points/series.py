"""Lists the series of crash points: each has all the points of one kind of harm to one shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from .shapes import HARMS, MOMENTS


@dataclass(frozen=True)
class Series:
    """All the points of one shape, one kind of harm and one moment: n = 1, 2, 3, ..."""

    side: str
    pool: str
    shape: str
    kind: str
    moment: str

    def point(self, nth: int, fresh: bool = False) -> str:
        words = (self.side, self.pool, self.shape, self.kind, self.moment, str(nth))
        return "/".join(words).replace(" ", "-") + ("-fresh" if fresh else "")


def all_series(
    sides: Iterable[str],
    pools: Iterable[str],
    shapes: Iterable[str],
    kinds: Iterable[str] = HARMS,
    moments: Iterable[str] = MOMENTS,
) -> list[Series]:
    every = itertools.product(sides, pools, shapes, kinds, moments)
    # Only a pool of processes has a child that can die alone.
    return [Series(*one) for one in every if one[3] != "child" or one[1] == "prefork"]
