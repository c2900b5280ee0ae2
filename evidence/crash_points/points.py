"""Run series of crash points in several threads, each with a lane of its own (`lane.py`).

`evidence/crash_points/__init__.py` calls it, and so do tests.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable

from ..history import History
from .lane import Lane
from .series import Series

#: Points of a series at most. No job of a shape sends so many commands: if a series went on beyond
#: this number, the count would be wrong, and the series might never end.
MOST = 120


class Run:
    """A run of several series in threads. A thread keeps its lane, and so its workers, for all
    series of one side and pool.

    Arguments:
        series: the series to run.
        history: gets the lines.
        lanes: number of threads.
        minutes: run what fits into this time, in a random order; None to run all.
        seed: seed of that order.
        without: safeties of the package to remove, with commas.
        nths: makes the numbers of the commands to try in each series (default: 1, 2, 3, ...).
        say: gets a line of text for each series that has ended.
    """

    def __init__(
        self,
        series: list[Series],
        history: History,
        *,
        lanes: int = 2,
        minutes: float | None = None,
        seed: int | None = None,
        without: str = "",
        nths: Callable[[], Iterable[int]] = lambda: itertools.count(1),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._history = history
        self._lanes = lanes
        self._without = without
        self._nths = nths
        self._say = say
        self._deadline = time.monotonic() + minutes * 60 if minutes else None
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._series = series
        if minutes:  # only some will run: which ones depends on the seed
            random.Random(seed).shuffle(self._series)
        self._groups: dict[tuple[str, str], list[Series]] = {}
        for one in self._series:
            self._groups.setdefault((one.side, one.pool), []).append(one)

    def run(self) -> None:
        """Run all series, and wait for them. Raise the first error of a thread."""
        threads = [
            threading.Thread(target=self._work, name=f"lane-{n}") for n in range(self._lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _next(self, own: tuple[str, str] | None = None) -> Series | None:
        """Return the next series, of the lane's own side and pool if one is left. Return None if
        there is none, the time is over, or a thread has failed."""
        with self._lock:
            if self._errors or (self._deadline and time.monotonic() > self._deadline):
                return None
            # Otherwise, of the side and pool with the most series left.
            groups = sorted(self._groups, key=lambda group: -len(self._groups[group]))
            group = own if own and self._groups[own] else groups[0]
            return self._groups[group].pop(0) if self._groups[group] else None

    def _work(self) -> None:
        """Run series until none is left, in a new lane for each change of side or pool."""
        try:
            one = self._next()
            while one:
                own = one.side, one.pool
                with Lane(*own, self._history, self._without) as lane:
                    while one and (one.side, one.pool) == own:
                        self._through(lane, one)
                        one = self._next(own)
        except BaseException as exc:
            self._errors.append(exc)

    def _through(self, lane: Lane, one: Series) -> None:
        """Run the points of a series: n = 1, 2, 3, ... until a new process, which sends the most
        commands, sends fewer than n."""
        began, hits, fresh = time.monotonic(), 0, False
        for nth in self._nths():
            if nth > MOST or (self._deadline and time.monotonic() > self._deadline):
                break
            hit = lane.run(one, nth, fresh=fresh)
            if not hit and not fresh:  # a process with connections sends fewer commands
                fresh = True
                hit = lane.run(one, nth, fresh=fresh)
            if not hit:
                break
            hits += 1
        self._say(f"{one.point(hits)}: {hits} points in {time.monotonic() - began:.0f} s")
