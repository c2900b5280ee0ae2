"""The blocking reads of one channel: while its lists are dry, one waits on each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Protocol

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from .blocking import BlockingRead, unblock
from .job import Job
from .membership import Membership

#: Blocking connections of one channel at most; lists beyond that are looked at once a second.
MOST_BLOCKS = 16

#: Seconds for which a list that the server refuses to block on is looked at instead.
UNBLOCKABLE = 2.0


class Loop(Protocol):
    """Whatever calls back when a socket is readable."""

    def watch(self, fd: int, on_readable: Callable[[], bool]) -> None:
        """Call ``on_readable`` when ``fd`` is."""

    def unwatch(self, fd: int) -> None:
        """Undo ``watch``."""


class BlockingReads:
    """One connection for each queue list that is waited on.

    Arguments:
        on_job: called with each job that a read brought, and when that began to wait
            (monotonic s).
        on_refused: called with a queue list and why the server does not block on it.
    """

    def __init__(
        self,
        membership: Membership,
        loop: Loop,
        on_job: Callable[[Job, float], object],
        on_refused: Callable[[str, str], object],
    ) -> None:
        self.membership = membership
        self.loop = loop
        self.on_job = on_job
        self.on_refused = on_refused
        #: False once a claim may land that nobody waits for: it could not be called off.
        self.answered = True
        self._reads: dict[str, BlockingRead] = {}
        self._fds: dict[str, int] = {}
        self._unblockable: dict[str, float] = {}

    @property
    def lists(self) -> set[str]:
        """Queue lists with a connection."""
        return set(self._reads)

    @property
    def armed(self) -> list[BlockingRead]:
        """Those that wait now."""
        return [read for read in self._reads.values() if read.armed]

    @property
    def overdue(self) -> bool:
        """True when some reply should have come long ago."""
        return any(read.overdue for read in self._reads.values())

    def can_cover(self, lists: Collection[str]) -> bool:
        """Whether all of ``lists`` can be waited on; else they have to be looked at."""
        now = monotonic()
        return len(lists) <= MOST_BLOCKS and all(t <= now for t in self._unblockable.values())

    def wait_on(self, lists: Sequence[str]) -> None:
        """Let a read wait on each list, as far as that is possible, and on no other.

        Raises:
            redis.exceptions.RedisError: the server cannot be reached.
        """
        now = monotonic()
        for name in lists[:MOST_BLOCKS]:
            read = self._reads.get(name)
            if (read is not None and read.armed) or self._unblockable.get(name, 0.0) > now:
                continue
            if read is None or not read.connected:
                read = self._open(name)
            read.arm()
        self.close(self.lists - set(lists))

    def _open(self, name: str) -> BlockingRead:
        self.close([name])
        read = BlockingRead(self.membership, name, dict(self.membership.params))
        self._fds[name] = read.connect()
        self._reads[name] = read
        self.loop.watch(self._fds[name], lambda: self._on_reply(read))
        return read

    def _on_reply(self, read: BlockingRead) -> bool:
        """A read answered, or its connection broke. Nothing is delivered here."""
        if not read.armed:  # the server closed an idle connection
            self.close([read.queue_list])
            return False
        try:
            payload = read.read()
        except ResponseError as exc:
            # OOM (Redis refuses the block), WRONGTYPE, a lost permission: the claim script
            # looks at the list instead, once a second.
            self._unblockable[read.queue_list] = monotonic() + UNBLOCKABLE
            if not isinstance(exc, OutOfMemoryError):
                self.on_refused(read.queue_list, str(exc))
            return False
        except (RedisError, OSError):
            self.membership.in_flight.doubt = True
            self.close([read.queue_list])
            raise
        if payload is not None:
            job = self.membership.in_flight.lists.job(read.owner, read.queue_list, payload)
            self.on_job(job, read.armed_at)
        return False

    def call_off(self, reads: Sequence[BlockingRead]) -> None:
        """End some waits; what they had claimed already comes by ``on_job``.

        Raises:
            redis.exceptions.RedisError: the server cannot be reached.
        """
        if unblock(self.membership.client, list(reads)):
            for read in reads:
                self._on_reply(read)

    def close(self, lists: Collection[str] | None = None) -> None:
        """Close the connections of some lists; of all without ``lists``."""
        for name in self.lists if lists is None else self.lists & set(lists):
            read = self._reads.pop(name)
            self.loop.unwatch(self._fds.pop(name))
            if read.armed:
                # What it has claimed by now, nobody reads any more.
                self.membership.in_flight.doubt = True
                self.answered = self.answered and bool(read._id)
            read.close()
