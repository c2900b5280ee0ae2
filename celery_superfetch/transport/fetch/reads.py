"""How one channel waits while its lists are dry: a blocking read on each, as far as they go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import monotonic

from kombu.log import get_logger
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from ...model.job import Job
from ...owner.membership import Membership
from ...store.wire.clients import unblock
from .blocking_read import BlockingRead
from .tracking import Loop, Tracking

logger = get_logger(__name__)

#: Blocking connections of one channel at most; the server tells of changes in the other lists.
MOST_BLOCKS = 16

#: Seconds for which a list that the server refuses to block on is looked at instead.
UNBLOCKABLE = 2.0

#: Seconds between two complaints about one queue list.
COMPLAINT_INTERVAL = 60.0


class BlockingReads:
    """One connection for each queue list that is waited on.

    Arguments:
        on_job: called with each job that a read brought, and when that began to wait
            (monotonic s).
        on_jobs: called when there is something in a list that none waits on.
    """

    def __init__(
        self,
        membership: Membership,
        loop: Loop,
        on_job: Callable[[Job, float], object],
        on_jobs: Callable[[], object],
    ) -> None:
        self.membership = membership
        self.loop = loop
        self.on_job = on_job
        #: False once a claim may land that nobody waits for: it could not be called off.
        self.answered = True
        self._reads: dict[str, BlockingRead] = {}
        self._fds: dict[str, int] = {}
        self._unblockable: dict[str, float] = {}
        #: Queue list -> until when nobody complains of it again (monotonic s).
        self._silenced: dict[str, float] = {}
        #: Until when the server blocks on none (monotonic s): it is over its memory limit.
        self._none_until = 0.0
        self._tracking = Tracking(membership, loop, self._note_news, on_jobs)
        #: When something came to a list last (monotonic s).
        self._news: dict[str, float] = {}

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
        enough = len(lists) <= MOST_BLOCKS or self._tracking.allowed
        return enough and all(t <= now for t in (self._none_until, *self._unblockable.values()))

    def refused(self, name: str, why: str) -> None:
        """Wait on a list no more for a while: the server does not serve it."""
        now = monotonic()
        self._unblockable[name] = now + UNBLOCKABLE
        if now >= self._silenced.get(name, 0.0):
            self._silenced[name] = now + COMPLAINT_INTERVAL
            logger.error(
                "Queue list %s cannot be claimed from: %s. Nothing was taken; the other queues "
                "go on. If the key holds something else, rename it or the queue.",
                name,
                why,
            )

    def wait_on(self, lists: Sequence[str]) -> None:
        """Let a read wait on each list, as far as that is possible, and on no other.

        Raises:
            redis.exceptions.RedisError: the server cannot be reached.
        """
        now = monotonic()
        if now < self._none_until:
            return
        able = [name for name in lists if self._unblockable.get(name, 0.0) <= now]
        chosen = self._choose(able)
        free = [r for name, r in self._reads.items() if name not in chosen and not r.armed]
        for name in chosen:
            read = self._reads.get(name)
            if read is not None and read.armed:
                continue
            if read is None and free:
                read = self._move(free.pop(), name)
            if read is None or not read.connected:
                read = self._open(name)
            read.arm()
        self.close(self.lists - set(lists))
        if len(lists) > MOST_BLOCKS:
            self._tracking.look_at([name for name in able if name not in chosen])
        else:
            self._tracking.close()

    def _choose(self, lists: Sequence[str]) -> Collection[str]:
        """Which lists get the connections.

        Those on which one waits already, and then those to which something came last: a job that
        a read brings wakes one worker, and one that is told of wakes all.
        """
        armed = {read.queue_list for read in self.armed}
        others = sorted(
            (name for name in lists if name not in armed),
            key=lambda name: self._news.get(name, 0.0),
            reverse=True,
        )
        return armed.union(others[: max(0, MOST_BLOCKS - len(armed))])

    def _note_news(self, lists: Collection[str]) -> None:
        self._news.update(dict.fromkeys(lists, monotonic()))

    def _move(self, read: BlockingRead, name: str) -> BlockingRead:
        """Let a read that ended wait on another list."""
        self._reads[name] = self._reads.pop(read.queue_list)
        self._fds[name] = self._fds.pop(read.queue_list)
        read.queue_list = name
        return read

    def _open(self, name: str) -> BlockingRead:
        self.close([name])
        read = BlockingRead(self.membership, name, self.membership.home.params)
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
        # What is refused here the claim script looks at instead, once a second.
        except OutOfMemoryError:
            self._none_until = monotonic() + UNBLOCKABLE
            return False
        except ResponseError as exc:  # WRONGTYPE, a lost permission
            self.refused(read.queue_list, str(exc))
            return False
        except (RedisError, OSError):
            self.membership.in_flight.doubt = True
            self.close([read.queue_list])
            raise
        if payload is not None:
            self._note_news([read.queue_list])
            job = self.membership.in_flight.lists.job(read.owner, read.queue_list, payload)
            self.on_job(job, read.armed_at)
        return False

    def call_off(self, reads: Sequence[BlockingRead]) -> None:
        """End some waits; what they had claimed already comes by ``on_job``.

        Raises:
            redis.exceptions.RedisError: the server cannot be reached.
        """
        if unblock(self.membership.client, reads):
            for read in reads:
                self._on_reply(read)

    def close(self, lists: Collection[str] | None = None) -> None:
        """Close the connections of some lists; of all without ``lists``."""
        if lists is None:
            self._tracking.close()
        for name in self.lists if lists is None else self.lists & set(lists):
            read = self._reads.pop(name)
            self.loop.unwatch(self._fds.pop(name))
            if read.armed:
                # What it has claimed by now, nobody reads any more.
                self.membership.in_flight.doubt = True
            self.answered = read.close() and self.answered
