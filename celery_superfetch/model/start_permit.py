"""The start permit of a process: the time until which it may start jobs. Before that time no peer
can have declared it dead, and so no peer can have recovered the jobs that it has claimed.

The heartbeat thread renews it with each answer of the server, and ends it when the process reports
that its event loop hangs. The start of each job asks for the deadline (``InFlight``). It is in
memory alone; a death loses nothing.
"""

from __future__ import annotations

import math
import time
from functools import partial

#: Seconds by a clock that is the same in all processes of a host, and that goes on while the host
#: is suspended: meanwhile peers on other hosts may recover the jobs of this one. Windows, which has
#: producers only, has no such clock.
clock = time.monotonic
if hasattr(time, "clock_gettime"):  # macOS has no BOOTTIME; its MONOTONIC goes on
    clock = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

#: Heartbeat intervals for which an answered heartbeat permits starts. Peers declare an owner whose
#: process still runs dead after two intervals without a heartbeat at the earliest.
PERMIT_HEARTBEATS = 1.5


class StartPermit:
    """The permit that the last answered heartbeat gives. Any thread may call it."""

    def __init__(self, heartbeat_interval: float) -> None:
        self._interval = heartbeat_interval
        #: The name under which the last heartbeat was answered, and until when that permits starts
        #: (``clock``). Without any heartbeat starts are not limited: no reaper knows such an owner.
        self._holder_and_deadline: tuple[str | None, float] = None, math.inf

    @property
    def holder(self) -> str | None:
        """The owner's name that the permit is for; None: no heartbeat was answered yet."""
        return self._holder_and_deadline[0]

    def renew(self, owner: str, asked: float) -> None:
        """Renew the permit: the server has answered a heartbeat that ``owner`` sent at ``asked``
        (``clock``)."""
        self._holder_and_deadline = owner, asked + PERMIT_HEARTBEATS * self._interval

    def end(self) -> None:
        """Forbid each start until ``renew`` is called again."""
        self._holder_and_deadline = self.holder, 0.0

    def deadline(self, owner: str) -> float:
        """Return until when jobs that ``owner`` has claimed may start (``clock``). 0: not now,
        since the permit is over, or the process has registered under another name since (after it
        was declared dead)."""
        holder, deadline = self._holder_and_deadline
        return deadline if holder in (None, owner) and deadline > clock() else 0.0
