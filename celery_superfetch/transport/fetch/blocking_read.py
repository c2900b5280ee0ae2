"""A blocking read: one connection that waits on one queue list and claims from it by BLMOVE."""

from __future__ import annotations

import contextlib
from time import monotonic
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from ...owner.membership import BLOCK_TIMEOUT, Membership
from ...store.registry import run_behind, to_connections
from ...store.wire.connections import Params, lone_connection
from ...store.wire.scripts import reply_of

#: Seconds a reply may be overdue before the connection counts as half-open; a server that
#: stands still for 10 s keeps its connections.
OVERDUE = 12.0

#: Seconds between two tries to call off a read that the server does not know as blocked, and
#: until that is given up.
UNBLOCK_PAUSE = 0.005
UNBLOCK_LIMIT = 1.0


class BlockingRead:
    """Waits on one queue list; a job that arrives there wakes exactly one waiting worker.

    Arguments:
        params: arguments of a redis-py connection to the broker, ``connection_class`` among
            them.
    """

    def __init__(self, membership: Membership, queue_list: str, params: Params) -> None:
        self.membership = membership
        self.queue_list = queue_list
        self.connection = lone_connection(params)
        self.armed = False
        #: Whose private list the pending claim leads to.
        self.owner = ""
        #: When the pending claim was sent (monotonic s).
        self.armed_at = 0.0
        #: Its id at that run of the server.
        self._id = 0
        self.run_id = ""

    def connect(self) -> int:
        """Connect and return the file descriptor to watch.

        Raises:
            redis.exceptions.RedisError: the server cannot be reached.
        """
        self.connection.connect()
        # Without either it can be neither unblocked nor cut, only awaited.
        self.run_id = run_behind(self.connection)
        self.connection.send_command("CLIENT", "ID")
        number = reply_of(self.connection)
        self._id = 0 if isinstance(number, ResponseError) or not self.run_id else int(number)
        if self._id:
            self.membership.heart.blocking.add(self._id)
        return int(self.connection._sock.fileno())

    @property
    def connected(self) -> bool:
        """True while there is a socket."""
        return self.connection._sock is not None

    @property
    def overdue(self) -> bool:
        """True when the server should have answered long ago."""
        return self.armed and monotonic() - self.armed_at > BLOCK_TIMEOUT + OVERDUE

    def arm(self) -> None:
        """Send the blocking claim; its reply is read when the socket is readable."""
        self.owner = self.membership.owner
        self.armed_at = monotonic()
        keys = self.membership.database.keys
        self.connection.send_command(
            "BLMOVE",
            keys.queue(self.queue_list),
            keys.private(self.owner, self.queue_list),
            "RIGHT",
            "LEFT",
            BLOCK_TIMEOUT,
            check_health=False,
        )
        self.armed = True

    def read(self) -> bytes | None:
        """The reply: a payload, or None when none came in time or it was unblocked.

        Raises:
            redis.exceptions.RedisError: the connection broke (a job may have been claimed), or
                the server refused (WRONGTYPE, OOM).
        """
        self.armed = False
        reply: bytes | None = self.connection.read_response()
        return reply

    def close(self) -> bool:
        """Close the connection, on the server too: a claim must not land afterwards.

        Returns:
            False where it may all the same: nobody can tell the server that it was made on.
        """
        was_armed, self.armed = self.armed, False
        told: list[Any] | None = None
        if self._id:
            self.membership.heart.blocking.discard(self._id)
            told = []
            if was_armed:
                # Best effort: it is gone already, killing is forbidden, or the server is gone.
                with contextlib.suppress(RedisError):
                    client = self.membership.client
                    told = to_connections(client, self.run_id, ["KILL", "ID"], [self._id])
        self.connection.disconnect()
        return not was_armed or told is not None


def unblock(client: Redis, reads: list[BlockingRead]) -> bool:
    """CLIENT UNBLOCK some armed reads, so that their replies are there to be read.

    Returns:
        False where that is forbidden, has no effect in time, or ``client`` leads to another
        server by now; the replies then come when they come.

    Raises:
        redis.exceptions.RedisError: the server cannot be reached, or one of the reads broke.
    """
    if not reads:
        return True
    if any(not read._id or read.run_id != reads[0].run_id for read in reads):
        return False
    if not all(read.connected for read in reads):  # to ask redis-py would be to connect anew
        raise RedisConnectionError("a blocking connection broke")
    deadline = monotonic() + UNBLOCK_LIMIT
    pending = list(reads)
    while pending:
        ids = [read._id for read in pending]
        replies = to_connections(client, pending[0].run_id, ["UNBLOCK"], ids)
        if replies is None or monotonic() > deadline:
            return False
        if any(isinstance(reply, ResponseError) for reply in replies):
            return False
        # 0: it was answered already, or the server has not come to read it yet, which asks for
        # another try: to wait for its reply would be to wait until its block ends.
        pending = [
            read
            for read, reply in zip(pending, replies, strict=True)
            if reply != 1 and not read.connection.can_read(timeout=UNBLOCK_PAUSE)
        ]
    return True
