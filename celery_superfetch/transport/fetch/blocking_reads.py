"""The wait of one channel while its queues are empty: a blocking read (BLMOVE) on each of up to
four queue lists. Which lists these are follows from this owner's *rank* among the owners that serve
the same lists (``model/owner_rank.py``). The channel has one more connection for the other lists
(``store/key_tracking.py``): it asks once a second whether one of them has jobs, or, if few owners
wait, the server reports on it that a list has changed (*key tracking*).

A job that a read moves *lands*: it is in a landing list of this owner on the server, without a
claim, until the next claim takes it from there. The fetch loop calls ``wait_on`` when a claim found
the queues empty, ``call_off`` before a job runs in its thread, ``close`` at the end. Celery's loop,
or the poller without one, calls ``_on_reply`` and ``_on_report`` when a socket is readable. The
owner *needs a reconcile* (``owner.leases.needs_reconcile``) when a read is lost while it waits: a
job may have landed that no claim takes, and ``Owner.reconcile`` requeues it.

A read ends in three ways. ``call_off`` makes the server end it and reads the reply, so that the
connection can be used again. If the server does not do that, ``_abandon`` closes the connection and
requeues what has landed. ``close`` closes the connection, and the owner needs a
reconcile.

If the process dies, the server ends the reads as soon as it notices; until then (for
``BLOCK_TIMEOUT`` at most) a further job may land. The reaper requeues all that has landed.
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
from redis.exceptions import RedisError, ResponseError

from ...model.log_text import one_line_each
from ...model.owner_rank import MOST_READS, OwnerRank
from ...owner.owner import BLOCK_TIMEOUT, Owner
from ...store.key_tracking import EXISTS_INTERVAL_S, KeyTracker
from ...store.redis.clients import LoneConnection, cut, unblock
from ...store.redis.connections import NotServed
from ...store.redis.server import is_temporary, warn_once
from .backlog import Landed
from .queue_lists import QueueLists

logger = one_line_each(get_logger(__name__))

#: Seconds for which a list counts as in use after a job came from it. Workers block on lists in use
#: only: most queues have three lists for priorities with which no sender ever publishes.
IN_USE_S = 600.0

#: Seconds after the time limit of a read from which its connection counts as half-open, if it has
#: no reply. A server that saves or swaps may not answer for 10.
READ_OVERDUE_S = 12.0

#: Seconds for which blocking on a list, a further connection, or key tracking is not tried again
#: after the server refused it. Queue lists are claimed from once a second meanwhile. The first also
#: holds after a temporary refusal of key tracking, or of CLIENT UNBLOCK.
BLOCK_REFUSED_S = 2.0
CONNECTION_REFUSED_S = 60.0
TRACKING_REFUSED_S = 60.0

#: Seconds for which a server that did not end a read (CLIENT UNBLOCK) is not asked for that again:
#: each try takes a second.
UNBLOCK_REFUSED_S = 600.0

#: Seconds for which the choice of lists to wait on is kept, if nothing has changed. For a channel
#: of twenty queues the choice takes 22 us, for one of a thousand 1 ms, and each tick needs it.
CHECK_INTERVAL = EXISTS_INTERVAL_S

COMPLAINT_INTERVAL = 60.0  # seconds between two complaints about one queue list


def is_full(error: Exception) -> bool:
    """Return whether a server refuses a connection since it has as many as ``maxclients`` allow."""
    return "max number of clients" in str(error)


class BlockingRead(LoneConnection):
    """A connection that waits on one queue list with BLMOVE. A job that arrives there wakes exactly
    one worker, and lands for that worker's owner."""

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
        self.owner.private_lists.send_blocking_read(
            self, self.owner_name, queue_list, BLOCK_TIMEOUT
        )
        self.owner.armed_reads.add(self)

    def read(self) -> Any:
        self.owner.armed_reads.discard(self)
        return super().read()

    def disconnect(self) -> None:
        self.owner.armed_reads.discard(self)
        super().disconnect()

    def close(self) -> bool:
        """Close the connection, on the server too; return False if a job may land afterwards, since
        the server may not have ended the read."""
        closed = not self.waits_since
        self.owner.blocking.discard(self.id)
        if self.waits_since:
            with contextlib.suppress(RedisError, OSError):  # the connection or the server is gone
                address_by_id = {self.id: self.address}
                closed = bool(self.id) and cut(
                    self.owner.client, self.run_id, [self.id], address_by_id
                )
        self.disconnect()
        return closed


class _Inputs(NamedTuple):
    """The state from which the lists to wait on are chosen. The choice also depends on the time
    (which lists are in use, what was refused lately), so it is made again after
    ``CHECK_INTERVAL``."""

    names: Sequence[str]
    rank: OwnerRank
    by_one: bool
    armed_since: tuple[float, ...]  # 0.0: a connection that does not wait


class BlockingReads:
    """The blocking reads of one channel, and its connection for the other lists."""

    _check_at = 0.0  # when the lists to wait on are chosen again at the latest (monotonic s)
    _checked: _Inputs | None = None  # the state from which they were chosen last
    #: before this time the server is not asked to end a read (monotonic s)
    _unblock_refused_until = 0.0
    queues_are_empty = False  # the last claim found the queues empty, so that reads wait for jobs
    #: A read was closed that the server may not have ended: a job may land for this owner after the
    #: channel is closed. Once True, it stays True.
    may_land_later = False

    def __init__(
        self, owner: Owner, poller: Any, on_landed: Callable[[Landed, float], object]
    ) -> None:
        self.owner, self.poller = owner, poller
        #: Called with each job that landed, and the seconds for which its read had waited.
        self.on_landed = on_landed
        self._reads: list[BlockingRead] = []
        self._tracker: KeyTracker | None = None
        #: Refusal of the server -> until when that is not tried again (monotonic s). A queue list:
        #: to block on it; ``BlockingRead``: to block at all; ``KeyTracker``: the connection for the
        #: other lists; ``KeyTracker.track``: key tracking.
        self._refused: dict[object, float] = {}
        self._silenced: dict[str, float] = {}  # queue list -> until when no refusal is logged
        #: Queue list -> when a job came to it last (monotonic s).
        self._last_job_at: dict[str, float] = {}

    @property
    def armed(self) -> list[BlockingRead]:
        """The reads that wait at the moment."""
        return [read for read in self._reads if read.waits_since]

    @property
    def overdue(self) -> bool:
        """True if a reply is late: the connection may be half-open."""
        return any(read.overdue(BLOCK_TIMEOUT + READ_OVERDUE_S) for read in self._reads)

    def cover(self, lists: Collection[str]) -> bool:
        """Return whether a job that comes to any of these queue lists is reported, since all of
        them can be waited on. If not, they have to be claimed from once a second."""
        wanted = {BlockingRead, KeyTracker, *lists} if len(lists) > 1 else {BlockingRead, *lists}
        untils = [until for feature, until in self._refused.items() if feature in wanted]
        return max(untils, default=0.0) <= monotonic()

    def note_refusal(self, name: str, why: str) -> None:
        """Note that the server refused to block on, or to claim from, a queue list; log it. The
        list is not waited on for a while."""
        now = monotonic()
        self._refused[name] = now + BLOCK_REFUSED_S
        if now >= self._silenced.get(name, 0.0):
            self._silenced[name] = now + COMPLAINT_INTERVAL
            logger.error(
                "No job can be claimed from a queue (queue=%s): %s. No job was moved, and other "
                "queues continue. If another program uses that key, rename the key or the queue.",
                name,
                why,
            )

    def wait_on(self, lists: QueueLists, *, by_one: bool) -> None:
        """Wait on all open queue lists of the channel.

        Arguments:
            by_one: block on one of them only, and learn of jobs in the others by the connection for
                that (``_learn_of``). If the consumer runs one job at a time, each job ends all
                reads: a second read would cost two more commands a job, to end it and to begin it
                again.
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
            self._refused[BlockingRead] = monotonic() + CONNECTION_REFUSED_S
            warn_once(
                f"Redis accepts no more connections ({exc}): this worker closes those that wait "
                "for jobs, and checks its queues once a second. Raise maxclients on the server, "
                "or start fewer processes."
            )

    def _inputs(self, lists: QueueLists, by_one: bool) -> _Inputs:
        armed_since = tuple([read.waits_since for read in self._reads])
        return _Inputs(lists.open_names, self.owner.rank, by_one, armed_since)

    def _wait_on(self, lists: QueueLists, by_one: bool) -> None:
        now, rank = monotonic(), self.owner.rank
        names = [name for name in lists.open_names if self._refused.get(name, 0.0) <= now]
        in_use = sorted(self._in_use(names, lists.unprioritised, now))
        count = 1 if by_one else rank.read_count(len(in_use))
        wanted = rank.share(in_use, count)
        are_few = rank.are_few(len(in_use), len(wanted))
        if are_few:
            # The next job most likely comes to the list to which the latest one came. Lists to
            # which none came stay in this order: this worker's share first.
            order = dict.fromkeys(wanted + in_use + names)
            wanted = nlargest(count, order, lambda name: self._last_job_at.get(name, 0.0))
        self._block_on(wanted, count)
        waited_on = {read.queue_list for read in self.armed}
        if others := [name for name in names if name not in waited_on]:
            self._learn_of(others, are_few)
        else:
            self._close_tracker()

    def _in_use(self, names: Sequence[str], always: Collection[str], now: float) -> list[str]:
        """Return those of ``names`` that ``always`` has, or from which a job came in the last
        ``IN_USE_S`` seconds; all of them if they are few, or if none is left."""
        if len(names) <= MOST_READS:
            return list(names)
        since = now - IN_USE_S
        in_use = [n for n in names if n in always or self._last_job_at.get(n, -IN_USE_S) > since]
        return in_use or [*names]

    def _block_on(self, wanted: Sequence[str], count: int) -> None:
        """Wait with reads on these lists, as far as ``count`` reads in all allow. A read that waits
        on another list is not ended: it waits for 20 s at most."""
        self.close([read for read in self._reads if not read.connected])
        idle = [read for read in self._reads if not read.waits_since]
        waited_on = {read.queue_list for read in self.armed}
        new = [name for name in wanted if name not in waited_on]
        for name in new[: max(0, count - len(waited_on))]:
            read = idle.pop() if idle else self._open()
            if read.closed_while_idle:
                # A command on this connection would raise, and the channel would be closed.
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
        """Read the reply of a read: a job has landed, or none came in time, or the server refused
        to block. The poller calls this when the socket is readable."""
        if not read.waits_since:  # the server closed an idle connection
            self.close([read])
            return
        waited = monotonic() - read.waits_since
        try:
            payload = read.read()  # None: no job came in time, or the server ended the read
        # After a refusal the queue is claimed from once a second instead.
        except ResponseError as exc:
            if is_temporary(exc):  # of each list: a full server, a long script
                self._refused[BlockingRead] = monotonic() + BLOCK_REFUSED_S
            else:  # WRONGTYPE, a lost permission
                self.note_refusal(read.queue_list, str(exc))
        except BaseException as exc:  # also the end of a greenlet, and what a signal handler raises
            self.owner.leases.needs_reconcile = True
            self.close([read])
            if not isinstance(exc, NotServed):  # after NotServed the next tick uses another server
                raise
        else:
            if payload is not None:
                self.record_jobs([read.queue_list])
                self.on_landed(Landed(read.owner_name, read.queue_list, payload), waited)

    def record_jobs(self, queue_lists: Iterable[str]) -> None:
        """Store that jobs came from these queue lists just now."""
        self._last_job_at.update(dict.fromkeys(queue_lists, monotonic()))

    def call_off(self, reads: Sequence[BlockingRead]) -> None:
        """End some reads by CLIENT UNBLOCK; ``on_landed`` is called for the jobs that had landed
        already.

        If the server does not end them (a service forbids UNBLOCK, or each of its proxies has ids
        of its own), it is not asked again for ``UNBLOCK_REFUSED_S`` seconds (after a temporary
        refusal for ``BLOCK_REFUSED_S``), and the reads continue: the loop requeues a job that lands
        and for which there is no room. But if this thread may run a job meanwhile, the loop would
        not find such a job until that run ends, while another worker is idle. Then the connections
        of the reads are closed."""
        if not reads:
            return
        if monotonic() >= self._unblock_refused_until:
            refused_s = UNBLOCK_REFUSED_S
            try:
                is_ended = unblock(self.owner.client, reads)
            except ResponseError as exc:
                if not is_temporary(exc):
                    raise
                is_ended = False
                refused_s = BLOCK_REFUSED_S
            if is_ended:
                for read in reads:
                    self._on_reply(read)
                return
            self._unblock_refused_until = monotonic() + refused_s
        executor = self.owner.executor
        if executor.inline or not executor.endless:
            self._abandon(reads)

    def leave_lists(self, queue_lists: Collection[str]) -> None:
        """Wait no longer on some queue lists, since their queues were paused. If the server does
        not end a read, its connection is closed: otherwise the read would take one more job."""
        self.call_off([read for read in self.armed if read.queue_list in queue_lists])
        if left := [read for read in self.armed if read.queue_list in queue_lists]:
            self._abandon(left)

    def _abandon(self, reads: Collection[BlockingRead]) -> None:
        """Close reads and requeue the jobs that they have brought. Until the server notices that
        the connections are closed, a further job may land: a deferred call requeues it. A worker's
        maintenance thread makes that call, also while this thread runs a job."""
        waited_on = [(read.owner_name, read.queue_list) for read in reads]
        for read in list(reads):
            self._remove(read)
        for owner_name, name in waited_on:
            self.owner.return_landed(owner_name, [name])
            self.owner.deferred_calls.append(partial(self.owner.return_landed, owner_name, [name]))

    def close(self, reads: Collection[BlockingRead] | None = None) -> None:
        """Close the connections of some reads; None: of all, and the connection for the other
        lists. If one of them still waits, the owner needs a reconcile."""
        if reads is None:
            self._close_tracker()
        for read in [read for read in self._reads if reads is None or read in reads]:
            if read.waits_since:
                # Its reply is not read any more, and a job may have landed.
                self.owner.leases.needs_reconcile = True
            self._remove(read)

    def _remove(self, read: BlockingRead) -> None:
        """Close a connection and forget it. If the server may not have ended the read (it forbids
        CLIENT KILL, and a proxy keeps its own connection), a job may land for ``BLOCK_TIMEOUT``: a
        second check of the owner requeues it."""
        self._reads.remove(read)
        self.poller.unwatch(read.fd)
        if not read.close():
            self.may_land_later = True
            self.owner.leases.expect_late()

    def _learn_of(self, lists: Sequence[str], are_few: bool) -> None:
        """Learn of jobs in these queue lists, on which no read waits: by key tracking if few owners
        wait, and the server allows it; else by asking once a second whether one has jobs."""
        now = monotonic()
        if self._tracker is not None and self._tracker.overdue(READ_OVERDUE_S):
            logger.warning(
                "No reply in time on the connection by which Redis reports new jobs (key "
                "tracking): it is replaced. If this repeats, check Redis and the network."
            )
            self._close_tracker()
        if now < self._refused.get(KeyTracker, 0.0):
            return
        try:
            if self._tracker is None:
                self._tracker = KeyTracker(self.owner.database, self.owner.params)
                self.poller.watch(self._tracker.fd, self._on_report)
            if are_few and now >= self._refused.get(KeyTracker.track, 0.0):
                self._tracker.track(lists)
            else:
                self._tracker.check(lists)
        except ResponseError as exc:
            self._do_without(exc)

    def _do_without(self, exc: ResponseError) -> None:
        """Do without RESP3 (there is no connection then) or key tracking for a while, since the
        server refused it; after a temporary refusal, for ``BLOCK_REFUSED_S`` and without a log
        line."""
        feature: object = KeyTracker if self._tracker is None else KeyTracker.track
        if is_temporary(exc):
            self._refused[feature] = monotonic() + BLOCK_REFUSED_S
            return
        self._refused[feature] = monotonic() + TRACKING_REFUSED_S
        warn_once(
            f"Redis does not report changes of queues ({exc}): queue lists on which no worker "
            "waits are checked once a second, so a job may wait for a second. If an ACL forbids "
            "it, grant CLIENT TRACKING (permissions in docs/reference/options.md)."
        )

    def _on_report(self) -> None:
        """Read the server's reports and replies about the other lists; if they have jobs, the next
        tick claims. The poller calls this when the socket is readable."""
        assert self._tracker is not None
        self._check_at = 0.0  # a list that has changed is not tracked any more
        try:
            changed, has_jobs = self._tracker.read()
        except BaseException as exc:
            self._close_tracker()  # no job is lost with it; the next ``wait_on`` opens another one
            if not isinstance(exc, (RedisError, OSError)):
                raise
            return
        self.record_jobs(changed)
        if has_jobs:
            self.queues_are_empty = False

    def _close_tracker(self) -> None:
        if self._tracker is not None:
            self.poller.unwatch(self._tracker.fd)
            self._tracker.close()
            self._check_at = 0.0
        self._tracker = None
