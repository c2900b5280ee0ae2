"""Record which lines of some files each test runs, and select the tests of a line.

`warm.py` records, `mutation.py` selects: for a changed line it runs only the tests that run it.
"""

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
    """A test, its duration with the recording, and the lines that it runs."""

    test: str
    seconds: float
    lines: dict[str, list[int]]  # file -> numbers


class Reach:
    """A pytest plugin that records the lines that each passed test runs.

    It records all threads of the process of the tests, but no worker that a test starts.

    Arguments:
        files: the files whose lines are recorded.
    """

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
        """Return a trace function for the lines of a function, if that is in one of the files."""
        file = self._files.get(frame.f_code.co_filename)
        if file is None:
            return None
        seen = self._lines[file]

        def line(frame: FrameType, event: str, arg: object) -> Any:
            seen.add(frame.f_lineno)
            return line

        return line


def running(reached: Iterable[Reached], file: str, line: int, span: range) -> list[Reached]:
    """Return the tests that run a line, the shortest first. If no test runs it (it may run at the
    import), return those that run its function.

    Arguments:
        reached: the tests, and the lines that they run.
        file, line: the line.
        span: the lines of its function.
    """
    rows = [(one, set(one.lines.get(file, ()))) for one in reached]
    found = [one for one, lines in rows if line in lines]
    found = found or [one for one, lines in rows if not lines.isdisjoint(span)]
    return sorted(found, key=lambda one: one.seconds)


def within(tests: Iterable[Reached], most_s: float) -> list[Reached]:
    """Return the first tests whose durations add up to ``most_s`` seconds at most; at least one, if
    there is any."""
    fit: list[Reached] = []
    total = 0.0
    for one in tests:
        total += one.seconds
        if fit and total > most_s:
            break
        fit.append(one)
    return fit
