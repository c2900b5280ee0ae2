"""The start permit of a process: until when it may start jobs, since no peer can have declared it
dead by then.

The heartbeat thread renews it with each answer of the server, and the start of each job asks it for
a deadline (``InFlight``). It is in memory alone; a death loses nothing.
"""

from __future__ import annotations

import math
import time
from functools import partial

#: Seconds by a clock that is the same in all processes of a host, and that goes on while the host
#: is suspended: peers may recover its jobs meanwhile. Windows, which has producers only, has no
#: such clock.
clock = time.monotonic
if hasattr(time, "clock_gettime"):  # macOS has no BOOTTIME; its MONOTONIC goes on
    clock = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

#: Heartbeat intervals for which an answered heartbeat permits starts. While a process of an owner
#: runs, peers declare the owner dead after two intervals without a heartbeat at the earliest.
HEARTBEATS = 1.5


class StartPermit:
    """The permit that the last answered heartbeat gives. Any thread may call it."""

    def __init__(self, heartbeat_interval: float) -> None:
        self._interval = heartbeat_interval
        #: The name under which the last heartbeat was answered, and until when that permits starts
        #: (``clock``). Without any heartbeat starts are not limited: no reaper knows such an owner.
        self._heard: tuple[str | None, float] = None, math.inf

    @property
    def holder(self) -> str | None:
        """The owner's name that the permit is for; None: no heartbeat was answered yet."""
        return self._heard[0]

    def heard(self, owner: str, asked: float) -> None:
        """Renew the permit: the server has answered a heartbeat that ``owner`` sent at ``asked``
        (``clock``)."""
        self._heard = owner, asked + HEARTBEATS * self._interval

    def end(self) -> None:
        """Forbid each start until ``heard`` is called again."""
        self._heard = self.holder, 0.0

    def deadline(self, owner: str) -> float:
        """Return until when jobs that ``owner`` has claimed may start (``clock``). 0: not now,
        since the permit is over, or this process has another name by now."""
        holder, deadline = self._heard
        return deadline if holder in (None, owner) and deadline > clock() else 0.0
