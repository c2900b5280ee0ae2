"""Key tracking: the server says when a list changes on which no connection waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import monotonic
from typing import Any

from redis.exceptions import RedisError, ResponseError

from ...owner.membership import Membership
from ...store.arrivals import Arrivals
from ...store.wire.server import warn_once

logger = logging.getLogger(__name__)

#: Seconds a reply may be overdue before its connection counts as half-open; a server that stands
#: still for 10 s keeps its connections.
OVERDUE = 12.0

TRY_AGAIN = 60.0  # seconds until it is tried again where a server has refused it


@dataclass(eq=False)
class Tracking:
    """Tells of arrivals in any number of lists; a job wakes all who look at its list."""

    membership: Membership
    poller: Any
    on_change: Callable[[Collection[str]], object]
    on_jobs: Callable[[], object]  # called when there is something in a list that was looked at
    #: Until when it is not tried, since the server has refused it (monotonic s).
    _refused_until: float = 0.0
    _arrivals: Arrivals | None = None

    @property
    def allowed(self) -> bool:
        return monotonic() >= self._refused_until

    def look_at(self, lists: Collection[str]) -> None:
        """See that word comes of whatever is, or arrives, in ``lists``."""
        if self._arrivals is not None and self._arrivals.overdue(OVERDUE):
            logger.warning("No word of changed queue lists in time; both connections are replaced.")
            self.close()
        if self._arrivals is None and lists and self.allowed:
            self._open()
        if self._arrivals is not None:
            self._arrivals.look(lists)

    def _open(self) -> None:
        try:
            self._arrivals = Arrivals(self.membership.database, self.membership.heart.params)
        except ResponseError as exc:
            self._refused_until = monotonic() + TRY_AGAIN
            warn_once(
                f"The server does not tell of changes ({exc}): queue lists on which no connection "
                "waits are looked at once a second. If that is forbidden to its user, see "
                "CLIENT TRACKING among the permissions in docs/configuration.md."
            )
        else:
            for fd, handler in zip(self._arrivals.fds, (self._hear, self._seen), strict=True):
                self.poller.watch(fd, handler)

    def _hear(self) -> None:
        assert self._arrivals is not None
        try:
            self.on_change(self._arrivals.changed())
        except (RedisError, OSError):
            self.close()  # no claim was lost with it, and the next look tries another

    def _seen(self) -> None:
        assert self._arrivals is not None
        try:
            found = self._arrivals.found()
        except (RedisError, OSError):
            return self.close()
        if found:
            self.on_jobs()

    def close(self) -> None:
        if self._arrivals is not None:
            for fd in self._arrivals.fds:
                self.poller.unwatch(fd)
            self._arrivals.close()
        self._arrivals = None
