"""A clock that a test sets, for the processes that are started by it: libfaketime's."""

from __future__ import annotations

import glob
import os
import time
from pathlib import Path

#: Where packages of distributions put it, and `make install`.
PLACES = ("/usr/lib/*/faketime", "/usr/lib*/faketime", "/usr/local/lib/faketime")


class NoFakeClock(Exception):
    """There is no libfaketime on this machine; the message says how to have it."""


def find_library() -> str:
    for place in PLACES:
        for path in glob.glob(f"{place}/libfaketimeMT.so.1"):
            return path
    raise NoFakeClock("no libfaketime to set clocks with: install faketime")


class Clock:
    """Its processes see the time of this machine, and so many seconds more. What counts from when
    they were started goes on as it does."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "clock"
        self.step(0.0)
        self.env = {
            "LD_PRELOAD": find_library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def step(self, ahead: float) -> None:
        """Set it so many seconds ahead of this machine's, or behind it."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead:+.3f}\n")
        os.replace(new, self._file)  # nobody reads a half of it
        self.ahead = ahead

    def set(self, at: float) -> None:
        """Have it show this time (s since the epoch)."""
        self.step(at - time.time())

    @property
    def now(self) -> float:
        return time.time() + self.ahead
