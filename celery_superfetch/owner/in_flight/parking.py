"""When a job is parked, and when the next parked one is due, by the server's clock."""

from __future__ import annotations

from math import inf

from ...model.permit import clock
from ...store.parked import EARLY

#: Seconds from which on a job waits on the server, and not here. It has to be more than what the
#: server lets it go before its time.
WORTH_PARKING = 5.0


class Parking:
    """What this process knows of that; any thread may ask."""

    def __init__(self) -> None:
        self._clock = 0.0, -inf  # the server's (ms) as it was last heard, and when (s of ``clock``)
        self._next = inf, -inf  # when the next job is due (server ms), and when that was told

    def heard(self, now: int, due: float | None, asked: float) -> None:
        """The server says what its clock shows (ms), and when the next job is due, to somebody who
        ``asked`` then (s of ``clock``)."""
        self._clock = float(now), clock()
        before, since = self._next
        due = inf if due is None else due
        # What was parked since then, it cannot have known of.
        self._next = (min(before, due) if since > asked else due), clock()

    def parked(self, due: float) -> None:
        self._next = min(self._next[0], due), clock()

    @property
    def now(self) -> float:
        """The server's clock (ms); infinite while nobody has heard it."""
        heard, at = self._clock
        return heard + (clock() - at) * 1000

    def is_worth(self, due: float) -> bool:
        """Whether a job that is due then (ms) is to be parked."""
        return due - self.now > WORTH_PARKING * 1000

    @property
    def is_due(self) -> bool:
        """Whether it is time to look: also where no heartbeat has told for longer than what others
        park may take to be due."""
        due, since = self._next
        return due <= self.now + EARLY or clock() - since > WORTH_PARKING + 0.5
