"""Which lines of some files each test runs: a changed line asks only the tests that run it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple

import pytest


class Reached(NamedTuple):
    """A test, how long it took, and the lines that it ran."""

    test: str
    seconds: float
    lines: dict[str, list[int]]  # file -> numbers


class Reach:
    """A pytest plugin that records what each test reaches, if the test passes. Only what runs in
    the process of the tests counts, in all its threads; workers that a test starts do not."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = {str(Path(file).resolve()): file for file in files}
        self._lines: dict[str, set[int]] = {}
        self.reached: list[Reached] = []
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines = {file: set() for file in self._files.values()}
        began = monotonic()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)  # type: ignore[return-value]
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            lines = {file: sorted(numbers) for file, numbers in self._lines.items() if numbers}
            if item.nodeid not in self.failed:
                self.reached.append(Reached(item.nodeid, monotonic() - began, lines))

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """Trace the lines of a function, if it is of one of the files."""
        file = self._files.get(frame.f_code.co_filename)
        if file is None:
            return None
        seen = self._lines[file]

        def line(frame: FrameType, event: str, arg: object) -> Any:
            seen.add(frame.f_lineno)
            return line

        return line


def running(reached: Iterable[Reached], file: str, line: int, span: range) -> list[Reached]:
    """Return the tests that run a line, the shortest first; those that run its function (``span``),
    if no test runs the line itself: it may be run at the import."""
    rows = [(one, set(one.lines.get(file, ()))) for one in reached]
    found = [one for one, lines in rows if line in lines]
    found = found or [one for one, lines in rows if not lines.isdisjoint(span)]
    return sorted(found, key=lambda one: one.seconds)


def within(tests: Iterable[Reached], most_s: float) -> list[Reached]:
    """Return the first of some tests, as many as take so many seconds together at most; one in any
    case."""
    fit: list[Reached] = []
    total = 0.0
    for one in tests:
        total += one.seconds
        if fit and total > most_s:
            break
        fit.append(one)
    return fit
