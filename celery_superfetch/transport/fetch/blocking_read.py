"""A blocking read: one connection that waits on one queue list and claims from it by BLMOVE."""

from __future__ import annotations

import contextlib
from time import monotonic

from redis.exceptions import RedisError

from ...owner.membership import BLOCK_TIMEOUT, Membership
from ...store.wire.clients import LoneConnection, cut
from ...store.wire.connections import Params

#: Seconds a reply may be overdue before the connection counts as half-open; a server that
#: stands still for 10 s keeps its connections.
OVERDUE = 12.0


class BlockingRead(LoneConnection):
    """Waits on one queue list; a job that arrives there wakes exactly one waiting worker."""

    def __init__(self, membership: Membership, queue_list: str, params: Params) -> None:
        super().__init__(params)
        self.membership = membership
        self.queue_list = queue_list
        self.armed = False
        #: Whose private list the pending claim leads to.
        self.owner = ""
        #: When the pending claim was sent (monotonic s).
        self.armed_at = 0.0

    def connect(self) -> int:
        fd = super().connect()
        self.learn_id()
        if self.id:
            self.membership.heart.blocking.add(self.id)
        return fd

    @property
    def overdue(self) -> bool:
        """True when the server should have answered long ago."""
        return self.armed and monotonic() - self.armed_at > BLOCK_TIMEOUT + OVERDUE

    def arm(self) -> None:
        """Send the blocking claim; its reply is read when the socket is readable."""
        self.owner = self.membership.owner
        self.armed_at = monotonic()
        self.membership.in_flight.lists.wait(self, self.owner, self.queue_list, BLOCK_TIMEOUT)
        self.armed = True

    def read(self) -> bytes | None:
        """The reply: a payload, or None when none came in time or it was unblocked.

        Raises:
            redis.exceptions.RedisError: the connection broke (a job may have been claimed), or
                the server refused (WRONGTYPE, OOM).
        """
        self.armed = False
        payload: bytes | None = super().read()
        return payload

    def close(self) -> bool:
        """Close the connection, on the server too: a claim must not land afterwards.

        Returns:
            False where it may all the same: nobody can tell the server that it was made on.
        """
        was_armed, self.armed = self.armed, False
        told = True
        self.membership.heart.blocking.discard(self.id)
        if was_armed:
            # Best effort: it is gone already, killing is forbidden, or the server is gone.
            with contextlib.suppress(RedisError):
                told = bool(self.id) and cut(self.membership.client, self.run_id, [self.id])
        self.disconnect()
        return told
