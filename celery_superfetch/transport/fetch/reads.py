"""How one channel waits while its queues are empty: with a blocking read (BLMOVE) on each of up to
four queue lists, which its place among the workers of the same lists chooses (``model/place.py``).
The others are looked at once a second, or, where few workers wait, the server reports what comes
there (``store/arrivals.py``).

A job that a read moves *lands*: it is in a landing list of this owner on the server, without a
claim, until the next claim names it. The fetch loop calls ``wait_on`` when a claim found the queues
empty, ``call_off`` before a job runs in its thread, ``close`` at the end; the poller calls
``_on_reply`` for a socket. The owner is *in doubt* (``owner.leases.doubt``) when a read is lost
while it waits: a job may have landed unseen, and ``Owner.reconcile`` requeues it.

If the process dies, the server ends the reads, and the reaper requeues what has landed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import nlargest
from time import monotonic
from typing import Any, NamedTuple

from kombu.log import get_logger
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from ...model.log_text import one_line_each
from ...model.place import MOST_READS, Place
from ...owner.owner import BLOCK_TIMEOUT, Owner
from ...store.arrivals import LOOK_INTERVAL, Arrivals
from ...store.redis.clients import LoneConnection, cut, unblock
from ...store.redis.connections import NotServed
from ...store.redis.server import warn_once
from .backlog import Landed
from .queue_lists import QueueLists

logger = one_line_each(get_logger(__name__))

#: Seconds for which a list counts as in use after a job came from it. Workers share the wait for
#: lists in use; most queues have three lists for priorities that no sender ever gives.
IN_USE_S = 600.0

#: Seconds by which a reply is late when the connection counts as half-open. A server that saves or
#: swaps may not answer for 10.
OVERDUE = 12.0

#: Seconds for which queue lists are claimed from once a second instead: after the server refused to
#: block on a list; and after it refused key tracking, or a connection.
UNBLOCKABLE, UNTOLD = 2.0, 60.0

#: Seconds for which a server that did not end a read when asked is not asked again: each time it
#: takes a second to find out.
NOT_UNBLOCKED = 600.0

#: Seconds for which it is not checked again what to wait on, if nothing has changed. For a channel
#: of twenty queues the check takes 22 us, for one of a thousand 1 ms; and each tick asks.
CHECK_INTERVAL = LOOK_INTERVAL

COMPLAINT_INTERVAL = 60.0  # seconds between two complaints about one queue list


def is_full(error: Exception) -> bool:
    """Whether a server refuses a connection since it has as many as its ``maxclients`` allow."""
    return "max number of clients" in str(error)


class BlockingRead(LoneConnection):
    """A connection that waits on one queue list with BLMOVE. A job that arrives there wakes exactly
    one worker, and lands."""

    owner_name = queue_list = ""  # for which owner a job lands, and from which queue list

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner.params)
        self.owner = owner

    def connect(self) -> int:
        self.fd = super().connect()
        self.learn_id()
        if self.id:
            self.owner.blocking.add(self.id)
        return self.fd

    def arm(self, queue_list: str) -> None:
        """Begin to wait on a queue list; the reply makes the socket readable."""
        self.owner_name, self.queue_list = self.owner.name, queue_list
        self.owner.private_lists.wait(self, self.owner_name, queue_list, BLOCK_TIMEOUT)
        self.owner.armed_reads.add(self)

    def read(self) -> Any:
        self.owner.armed_reads.discard(self)
        return super().read()

    def disconnect(self) -> None:
        self.owner.armed_reads.discard(self)
        super().disconnect()

    def close(self) -> bool:
        """Close the connection, on the server too; return False where a job may land afterwards."""
        closed = not self.waits_since
        self.owner.blocking.discard(self.id)
        if self.waits_since:
            with contextlib.suppress(RedisError, OSError):  # it or the server is gone
                own = {self.id: self.address}
                closed = bool(self.id) and cut(self.owner.client, self.run_id, [self.id], own)
        self.disconnect()
        return closed


class _Inputs(NamedTuple):
    """The state from which it follows what to wait on; besides, it follows from times."""

    names: Sequence[str]
    place: Place
    by_one: bool
    armed_since: tuple[float, ...]  # 0.0: a connection that does not wait


class BlockingReads:
    """The blocking reads of one channel, and its connection for the other lists."""

    _check_at = 0.0  # when what to wait on is checked again at the latest (monotonic s)
    _checked: _Inputs | None = None  # from which it was computed last
    _unblocks_from = 0.0  # until when the server is not asked to end a read (monotonic s)
    queues_are_empty = False  # the last claim found them so: reads wait for further jobs
    #: A read was given up that the server may still wait by: a job of it would land for this owner
    #: after the channel is closed. Never False again.
    may_land_later = False

    def __init__(
        self, owner: Owner, poller: Any, on_landed: Callable[[Landed, float], object]
    ) -> None:
        self.owner, self.poller = owner, poller
        #: Called for each job that landed; with the seconds for which the read had waited.
        self.on_landed = on_landed
        self._reads: list[BlockingRead] = []
        self._arrivals: Arrivals | None = None
        #: Queue list, or what waits (``BlockingRead``, ``Arrivals``, ``Arrivals.track``) -> until
        #: when the server is not asked again after it refused that (monotonic s).
        self._refused: dict[object, float] = {}
        self._silenced: dict[str, float] = {}  # queue list -> until when no refusal is logged
        self._news: dict[str, float] = {}  # queue list -> when a job came to it last (monotonic s)

    @property
    def armed(self) -> list[BlockingRead]:
        """The reads that wait at the moment."""
        return [read for read in self._reads if read.waits_since]

    @property
    def overdue(self) -> bool:
        """Whether a reply should have come: the connection may be half-open."""
        return any(read.overdue(BLOCK_TIMEOUT + OVERDUE) for read in self._reads)

    def cover(self, lists: Collection[str]) -> bool:
        """Return whether all of some queue lists can be waited on; else they have to be claimed
        from once a second."""
        wanted = {BlockingRead, Arrivals, *lists} if len(lists) > 1 else {BlockingRead, *lists}
        untils = [until for way, until in self._refused.items() if way in wanted]
        return max(untils, default=0.0) <= monotonic()

    def refused(self, name: str, why: str) -> None:
        """Do not wait on a queue list for a while: the server refused that for it. Log it."""
        now = monotonic()
        self._refused[name] = now + UNBLOCKABLE
        if now >= self._silenced.get(name, 0.0):
            self._silenced[name] = now + COMPLAINT_INTERVAL
            logger.error(
                "Queue list %s cannot be claimed from: %s. Nothing was taken; the other queues "
                "go on. If the key holds something else, rename it or the queue.",
                name,
                why,
            )

    def wait_on(self, lists: QueueLists, *, by_one: bool) -> None:
        """Wait on all queue lists of the channel.

        Arguments:
            by_one: block on one of them only, and learn of jobs in the others (``_learn_of``).
                Where the consumer runs one job at a time, each job ends all reads: a second read
                would cost two more commands a job, to end it and to begin it again.
        """
        now = monotonic()
        if now < self._refused.get(BlockingRead, 0.0):
            return
        if now < self._check_at and self._checked == self._inputs(lists, by_one):
            return
        try:
            self._wait_on(lists, by_one)
            self._check_at = now + CHECK_INTERVAL
            self._checked = self._inputs(lists, by_one)
        except RedisConnectionError as exc:
            if not is_full(exc):
                raise
            self.close()
            self._refused[BlockingRead] = monotonic() + UNTOLD
            warn_once(
                f"The server takes no more connections ({exc}): this worker closes those by which "
                "it waits for jobs, so that others have them, and looks at its queues once a "
                "second. Raise the server's maxclients, or start fewer processes."
            )

    def _inputs(self, lists: QueueLists, by_one: bool) -> _Inputs:
        armed_since = tuple([read.waits_since for read in self._reads])
        return _Inputs(lists.names, self.owner.place, by_one, armed_since)

    def _wait_on(self, lists: QueueLists, by_one: bool) -> None:
        now, place = monotonic(), self.owner.place
        names = [name for name in lists.names if self._refused.get(name, 0.0) <= now]
        in_use = sorted(self._in_use(names, lists.unprioritised, now))
        count = 1 if by_one else place.read_count(len(in_use))
        wanted = place.share(in_use, count)
        are_few = place.are_few(len(in_use), len(wanted))
        if are_few:
            # The next job most likely comes to the list to which the latest one came. Lists to
            # which none came stay in this order: this worker's share first.
            order = dict.fromkeys(wanted + in_use + names)
            wanted = nlargest(count, order, lambda name: self._news.get(name, 0.0))
        self._block_on(wanted, count)
        waited_on = {read.queue_list for read in self.armed}
        if others := [name for name in names if name not in waited_on]:
            self._learn_of(others, are_few)
        else:
            self._close_arrivals()

    def _in_use(self, names: Sequence[str], always: Collection[str], now: float) -> list[str]:
        """Return those of ``names`` that ``always`` has, or to which a job came lately."""
        if len(names) <= MOST_READS:
            return list(names)
        since = now - IN_USE_S
        return [n for n in names if n in always or self._news.get(n, -IN_USE_S) > since] or [*names]

    def _block_on(self, wanted: Sequence[str], count: int) -> None:
        """Wait with reads on these lists, as far as ``count`` reads in all allow: a read that waits
        on another list goes on, for 20 s at most."""
        self.close([read for read in self._reads if not read.connected])
        idle = [read for read in self._reads if not read.waits_since]
        waited_on = {read.queue_list for read in self.armed}
        new = [name for name in wanted if name not in waited_on]
        for name in new[: max(0, count - len(waited_on))]:
            read = idle.pop() if idle else self._open()
            if read.closed_while_idle:
                # If it were used, it would fail, and the channel would be closed for it.
                self.close([read])
                read = self._open()
            read.arm(name)
        self.close(idle[: max(0, len(self._reads) - count)])

    def _open(self) -> BlockingRead:
        read = BlockingRead(self.owner)
        read.connect()
        self._reads.append(read)
        self.poller.watch(read.fd, partial(self._on_reply, read))
        return read

    def _on_reply(self, read: BlockingRead) -> None:
        """Read a reply: a job has landed, or none came in time, or the server refused."""
        if not read.waits_since:  # the server closed an idle connection
            self.close([read])
            return
        waited = monotonic() - read.waits_since
        try:
            payload = read.read()  # None: none came in time, or it was unblocked
        # After a refusal, claims look at the queue once a second instead.
        except OutOfMemoryError:
            self._refused[BlockingRead] = monotonic() + UNBLOCKABLE
        except ResponseError as exc:  # WRONGTYPE, a lost permission
            self.refused(read.queue_list, str(exc))
        except BaseException as exc:  # also the end of a greenlet, and what a signal handler raises
            self.owner.leases.doubt = True
            self.close([read])
            if not isinstance(exc, NotServed):  # else the next tick waits at another server
                raise
        else:
            if payload is not None:
                self.note([read.queue_list])
                self.on_landed(Landed(read.owner_name, read.queue_list, payload), waited)

    def note(self, queue_lists: Iterable[str]) -> None:
        """Note that jobs came from these queue lists just now."""
        self._news.update(dict.fromkeys(queue_lists, monotonic()))

    def call_off(self, reads: Sequence[BlockingRead]) -> None:
        """End some reads; ``on_landed`` is called for the jobs that had landed already.

        If the server does not end them (a service forbids UNBLOCK, or each of its proxies has ids
        of its own), it is not asked again for ``NOT_UNBLOCKED`` seconds, and the reads go on: the
        loop requeues a job that lands without room for it. But if this thread may run a job
        meanwhile, no loop would see such a job until that run ends, while another worker is idle:
        then the reads are closed."""
        if not reads:
            return
        if monotonic() >= self._unblocks_from:
            if unblock(self.owner.client, reads):
                for read in reads:
                    self._on_reply(read)
                return
            self._unblocks_from = monotonic() + NOT_UNBLOCKED
        runner = self.owner.runner
        if runner.inline or not runner.endless:
            self._abandon(reads)

    def _abandon(self, reads: Collection[BlockingRead]) -> None:
        """Close reads and requeue what has landed by them. Until the server notices that they are
        closed, a further job may land: a deferred call requeues it. A worker's maintenance thread
        makes that call, also while this thread runs a job."""
        waited_on = [(read.owner_name, read.queue_list) for read in reads]
        for read in list(reads):
            self._remove(read)
        for owner_name, name in waited_on:
            self.owner.unland(owner_name, [name])
            self.owner.overdue.append(partial(self.owner.unland, owner_name, [name]))

    def close(self, reads: Collection[BlockingRead] | None = None) -> None:
        """Close some connections; without any named, all of them."""
        if reads is None:
            self._close_arrivals()
        for read in [read for read in self._reads if reads is None or read in reads]:
            if read.waits_since:
                # Its reply is not read any more, and a job may have landed.
                self.owner.leases.doubt = True
            self._remove(read)

    def _remove(self, read: BlockingRead) -> None:
        """Close a connection and forget it."""
        self._reads.remove(read)
        self.poller.unwatch(read.fd)
        if not read.close():
            self.may_land_later = True

    def _learn_of(self, lists: Sequence[str], are_few: bool) -> None:
        """Learn of jobs in these queue lists, on which no read waits: by tracking where few owners
        wait, and the server allows it, else by a look once a second."""
        now = monotonic()
        if self._arrivals is not None and self._arrivals.overdue(OVERDUE):
            logger.warning("No word of other queue lists in time; the connection is replaced.")
            self._close_arrivals()
        if now < self._refused.get(Arrivals, 0.0):
            return
        try:
            if self._arrivals is None:
                self._arrivals = Arrivals(self.owner.database, self.owner.params)
                self.poller.watch(self._arrivals.fd, self._on_news)
            if are_few and now >= self._refused.get(Arrivals.track, 0.0):
                self._arrivals.track(lists)
            else:
                self._arrivals.look(lists)
        except ResponseError as exc:
            self._refuse(exc)

    def _refuse(self, exc: ResponseError) -> None:
        """Do without what the server refused, for a while: RESP3, or tracking."""
        way: object = Arrivals if self._arrivals is None else Arrivals.track
        self._refused[way] = monotonic() + UNTOLD
        warn_once(
            f"The server does not report changes ({exc}): queue lists on which no worker waits "
            "are looked at once a second. If that is forbidden to its user, see CLIENT TRACKING "
            "among the permissions in docs/reference/options.md."
        )

    def _on_news(self) -> None:
        """Read what the server says of the other lists; if they have jobs, the next tick claims."""
        assert self._arrivals is not None
        self._check_at = 0.0  # a list that has changed is not tracked any more
        try:
            changed, has_jobs = self._arrivals.read()
        except BaseException as exc:
            self._close_arrivals()  # no claim is lost with it; the next ``wait_on`` opens another
            if not isinstance(exc, (RedisError, OSError)):
                raise
            return
        self.note(changed)
        if has_jobs:
            self.queues_are_empty = False

    def _close_arrivals(self) -> None:
        if self._arrivals is not None:
            self.poller.unwatch(self._arrivals.fd)
            self._arrivals.close()
            self._check_at = 0.0
        self._arrivals = None
