"""Until when a process may start jobs: as long as nobody can have taken it for dead."""

from __future__ import annotations

import math
import time
from functools import partial

#: Seconds by a clock that is one for all processes of a host, and that counts the sleep of a
#: suspended machine: its jobs may be others' by then. Producers on Windows have no such clock.
clock = time.monotonic
if hasattr(time, "clock_gettime"):  # macOS counts it by the name of the other
    clock = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

HEARTBEATS = 1.5  # heartbeats after the last that was heard. A verdict needs two of silence.


class StartPermit:
    """What the last heartbeat that the server answered is good for. Any thread may ask or tell."""

    def __init__(self, heartbeat_interval: float) -> None:
        self._interval = heartbeat_interval
        #: Under which name this process was heard, and until when that is good (s of ``clock``).
        #: Where nobody tells of heartbeats, nobody reaps either.
        self._heard: tuple[str | None, float] = None, math.inf

    @property
    def holder(self) -> str | None:
        return self._heard[0]

    def heard(self, owner: str, asked: float) -> None:
        """The server has answered a heartbeat that ``owner`` sent at ``asked`` (``clock``)."""
        self._heard = owner, asked + HEARTBEATS * self._interval

    def end(self) -> None:
        """Nothing starts until the next heartbeat that is good for it."""
        self._heard = self.holder, 0.0

    def deadline(self, owner: str) -> float:
        """Until when jobs that ``owner`` has claimed may start (``clock``); 0 for not now."""
        holder, deadline = self._heard
        return deadline if holder in (None, owner) and deadline > clock() else 0.0
