"""Decides when a job is worth parking, and when to ask the server for parked jobs that are due.

A *parked* job waits on the server for its time, in the parked set of its queue list. A worker
*releases* it, when it is due, to the front of its queue. The heartbeat thread calls ``note_answer``
with each answer of the server; the thread that sends the parks calls ``note_parked``; a worker's
release thread asks ``is_due`` once a second; the thread that delivers a job asks ``is_worth``. All
of this is in memory alone: if the process dies, its parked jobs stay on the server, where any other
worker releases them.
"""

from __future__ import annotations

from math import inf

from ...model.start_permit import clock
from ...store.parked_jobs import EARLY_MS

#: Seconds. A job that is due later than this waits on the server, and not in this worker. It has to
#: be more than the ``EARLY_MS`` ms by which the server releases a job before its time: otherwise
#: the worker that claims the job would park it again at once.
WORTH_PARKING = 5.0


class Parking:
    """This process's estimates of the server's clock, and of the time at which the next parked job
    is due. Any thread may call it."""

    def __init__(self) -> None:
        #: The server's clock (ms) in its last answer, and when that came (s of ``clock``).
        self._clock = 0.0, -inf
        #: When the next parked job is due (server ms), and when this was learned (s of ``clock``).
        self._next = inf, -inf

    def note_answer(self, now: int, due: float | None, asked: float) -> None:
        """Store an answer of the server.

        Arguments:
            now: the server's clock (ms).
            due: when its next parked job is due (server ms); None: none is parked.
            asked: when the server was asked (s of ``clock``).
        """
        self._clock = float(now), clock()
        before, since = self._next
        due = inf if due is None else due
        # If something was learned after this question was asked (this process has parked a job,
        # say), the answer may not include it: the earlier of the two times counts.
        self._next = (min(before, due) if since > asked else due), clock()

    def note_parked(self, due: float) -> None:
        """Note that this process has parked a job which is due at ``due`` (server ms)."""
        self._next = min(self._next[0], due), clock()

    @property
    def now(self) -> float:
        """The server's clock (ms). Infinite before its first answer: no job is worth parking then,
        and the server is to be asked."""
        on_answer, at = self._clock
        return on_answer + (clock() - at) * 1000

    def is_worth(self, due: float) -> bool:
        """Return whether a job that is due at ``due`` (server ms) is to be parked."""
        return due - self.now > WORTH_PARKING * 1000

    @property
    def is_due(self) -> bool:
        """True if it is time to ask the server for due jobs: the next job that is known is due, or
        the last answer is more than ``WORTH_PARKING`` + 0.5 s old.

        The limit of age is for jobs that other workers park. A job with an ETA is parked at least
        ``WORTH_PARKING`` seconds before its time. So a job that is due by now was parked before any
        answer younger than that, and the answer includes it. Only a job that cannot run now may be
        parked for less. The worker that parked it asks in time; if that worker has died, another
        one asks when its own answer has become too old.
        """
        due, since = self._next
        return due <= self.now + EARLY_MS or clock() - since > WORTH_PARKING + 0.5
