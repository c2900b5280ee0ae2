"""Decides when a job is worth parking, and when to ask the server for parked jobs that are due.

Parked jobs wait on the server. The heartbeat thread calls ``heard`` with each answer,
a worker's release thread asks ``is_due`` once a second, and the thread that delivers a job asks
``is_worth``. All of this is in memory alone: if the process dies, its parked jobs stay on the
server, where any other worker releases them.
"""

from __future__ import annotations

from math import inf

from ...model.permit import clock
from ...store.parked import EARLY

#: Seconds. A job that is due later than this waits on the server, and not in this worker. It has to
#: be more than ``EARLY``, by which the server releases a job before its time: otherwise the worker
#: that claims the job would park it again at once.
WORTH_PARKING = 5.0


class Parking:
    """The server's clock, and the time at which the next parked job is due, as far as this process
    knows them. Any thread may call it."""

    def __init__(self) -> None:
        #: The server's clock (ms) in its last answer, and when that came (s of ``clock``).
        self._clock = 0.0, -inf
        #: When the next parked job is due (server ms), and when this was learned (s of ``clock``).
        self._next = inf, -inf

    def heard(self, now: int, due: float | None, asked: float) -> None:
        """Note an answer of the server.

        Arguments:
            now: the server's clock (ms).
            due: when its next parked job is due (server ms); None: none is parked.
            asked: when the server was asked (s of ``clock``).
        """
        self._clock = float(now), clock()
        before, since = self._next
        due = inf if due is None else due
        # If this process has parked a job since it asked, the answer may not include that job.
        self._next = (min(before, due) if since > asked else due), clock()

    def parked(self, due: float) -> None:
        """Note that this process has parked a job that is due then (server ms)."""
        self._next = min(self._next[0], due), clock()

    @property
    def now(self) -> float:
        """The server's clock (ms). Infinite before its first answer: no job is worth parking then,
        and the server is to be asked."""
        heard, at = self._clock
        return heard + (clock() - at) * 1000

    def is_worth(self, due: float) -> bool:
        """Return whether a job that is due then (server ms) is to be parked."""
        return due - self.now > WORTH_PARKING * 1000

    @property
    def is_due(self) -> bool:
        """True if it is time to ask for due jobs: the next one is due, or the last answer is too
        old.

        Other workers park jobs, too, of which this process learns by the next answer. A job with an
        ETA is parked at least ``WORTH_PARKING`` seconds before its time: an answer that is younger
        than that cannot have missed one that is due by now. It can have missed a job that cannot
        run now, whose delay may be shorter. The worker that parked such a job asks in time; if it
        has died, another worker asks when its own answer is too old.
        """
        due, since = self._next
        return due <= self.now + EARLY or clock() - since > WORTH_PARKING + 0.5
