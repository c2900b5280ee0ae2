"""Runs crash points, one after the other in each of several lanes."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable

from ..history import History
from .lane import Lane
from .series import Series

#: Beyond this many commands something is wrong: no job of a shape sends so many.
MOST = 120


class Run:
    """Runs series in `lanes` threads. Each lane keeps its workers while side and pool are alike."""

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
        if minutes:  # not all of them: another part with each seed
            random.Random(seed).shuffle(self._series)
        self._groups: dict[tuple[str, str], list[Series]] = {}
        for one in self._series:
            self._groups.setdefault((one.side, one.pool), []).append(one)

    def run(self) -> None:
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
        """The next series, of the lane's own side and pool if there is one."""
        with self._lock:
            if self._errors or (self._deadline and time.monotonic() > self._deadline):
                return None
            # Otherwise of those that have the most to do.
            groups = sorted(self._groups, key=lambda group: -len(self._groups[group]))
            group = own if own and self._groups[own] else groups[0]
            return self._groups[group].pop(0) if self._groups[group] else None

    def _work(self) -> None:
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
        """Until a new process, which sends the most, has not come to its nth command."""
        began, hits, fresh = time.monotonic(), 0, False
        for nth in self._nths():
            if nth > MOST or (self._deadline and time.monotonic() > self._deadline):
                break
            hit = lane.run(one, nth, fresh=fresh)
            if not hit and not fresh:  # one that has run a job before: it has its connections
                fresh = True
                hit = lane.run(one, nth, fresh=fresh)
            if not hit:
                break
            hits += 1
        self._say(f"{one.point(hits)}: {hits} points in {time.monotonic() - began:.0f} s")
