"""When to claim, when to block, and what to do with what comes: one per channel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from threading import get_ident
from time import monotonic, sleep
from typing import Any

from kombu.log import get_logger
from redis.exceptions import RedisError, ResponseError

from ...model.job import Claimed, Job
from ...model.log_text import one_line_each
from ...owner.owner import Owner
from ...store.wire.connections import NotServed
from ...store.wire.slots import PAUSE
from .backlog import Backlog
from .probation import Probation
from .queue_lists import POLL_INTERVAL, QueueLists
from .reads import COMPLAINT_INTERVAL, LONE_BLOCK, MOST_BLOCKS, BlockingReads

logger = one_line_each(get_logger(__name__))

#: Seconds: what a read brings sooner may be one of many, and a claim asks for the others. What
#: comes later came alone; where it did not, the next read shows it.
AT_ONCE = 0.05


class Fetch:
    """Claims for one channel while there are jobs, and lets reads wait while there are none."""

    _next_look = 0.0  # when dry lists that cannot be waited on are looked at again (monotonic s)
    #: Until when a server that refused is not asked, and nobody complains of it (monotonic s).
    _refused_until = _silent_until = 0.0
    _delivering = 0  # the thread that does at this moment

    def __init__(self, channel: Any, poller: Any, owner: Owner) -> None:
        self.channel = channel
        self.poller = poller
        self.owner = owner
        self.runner = owner.runner
        self.backlog = Backlog()
        self.reads = BlockingReads(owner, poller, self._landed)
        self.probation = Probation(self)
        self._joined: Mapping[str, int] = {}
        self._outages = owner.outages

    @property
    def lists(self) -> QueueLists:
        lists: QueueLists = self.channel.lists
        return lists

    def turn(self) -> None:
        if self.channel.closed:
            return
        self.runner.pump()
        now = monotonic()
        if now < self._refused_until:
            return
        try:
            self._turn()
            self.owner.leases.rest()
        except NotServed as exc:
            logger.info("Claims and acks go to another server: %s.", exc)
            sleep(PAUSE)  # the slot may be on its way for a while
            self.poller.ring()
        except ResponseError as exc:
            # A full disk, too few replicas: that passes, and a worker that ended would help nobody.
            self._refused_until = now + POLL_INTERVAL
            if now >= self._silent_until:
                self._silent_until = now + COMPLAINT_INTERVAL
                logger.error(
                    "The broker refuses to serve claims and acks: %s. Nothing was lost, running "
                    "jobs go on; it is asked again every %g s.",
                    exc,
                    POLL_INTERVAL,
                )

    def _turn(self) -> None:
        lists = self.lists.names
        if lists or self.owner.name:  # what came before the last was given up has to go on
            self.join(self.lists.expires)
            self._mind_connections()
        if not lists:
            return self.owner.leases.flush()
        if self.owner.stopping:
            self.put_aside()  # first: what reads bring later would overtake what waits
            self.channel.qos.requeue_waiting()
            return self.owner.leases.flush()
        if self.probation.has_the_floor(lists, self.reads.dry):
            self.reads.dry = False
            alone = self.owner.leases.solo_job
            self.owner.leases.flush()
            if alone is not None and self.owner.leases.solo_job is None:
                self.poller.ring()
            return
        credit, now = self.channel.qos.credit(), monotonic()
        if self.reads.dry and now >= self._next_look and not self.reads.cover(lists):
            self.reads.dry = False
        if self.backlog.landed or (credit and not self.reads.dry and self._runs_short(credit)):
            self._claim(credit, now)
        elif self.backlog.ready and self.runner.inline:
            pass  # the next takes the acks along, with the record of its start
        elif self.owner.leases.unsent or (self.owner.leases.unread and not self.backlog.ready):
            self.owner.leases.post()
        if self.backlog.ready and self.runner.inline:
            return  # before it runs, a read would have to be called off
        if self.reads.dry and self.channel.qos.credit():
            ends_all = self.runner.inline or self.channel.qos.prefetch_count == 1
            self.reads.wait_on(lists, LONE_BLOCK if ends_all else MOST_BLOCKS)

    def _runs_short(self, credit: int) -> bool:
        """Whether it is time to claim: where this thread may run jobs, when it has none. Else none
        is idle while jobs wait here: many are claimed once there is room for as many as wait."""
        waiting = len(self.backlog)
        if self.poller.inline and waiting:
            return False
        if self.channel.qos.unlimited:
            return not waiting
        limit = self.owner.config.claim_limit
        held = self.channel.qos.in_use() - waiting
        reserve = waiting + min(held, self.runner.reserve())
        return waiting < limit and credit >= min(reserve, limit)

    def join(self, expires: Mapping[str, int]) -> None:
        """Register this process and its queue lists (-> ms of x-expires), unless that is known."""
        self.owner.check_process()
        if expires is not self._joined or not self.owner.name:
            self.owner.join(id(self), expires)
            self._joined = expires
            self.reads.dry = False  # these lists are others: a claim finds what is urgent there

    def _mind_connections(self) -> None:
        if self.owner.has_deferred_calls and not self.runner.endless:  # else maintenance does
            self.owner.catch_up()
        if self.reads.overdue:
            logger.warning("A blocking read got no reply in time; its connection is replaced.")
            self.owner.leases.doubt = True
        if self._outages != self.owner.outages:
            self._outages = self.owner.outages
            self.owner.leases.doubt = True
        if self.owner.leases.is_reconcile_due:
            # With no claim on its way, lost replies spoke of what only the private lists hold.
            self.reads.close()
            if back := self.owner.reconcile():
                logger.warning(
                    "%d jobs were claimed by calls whose reply was lost: they are back on their "
                    "queues, without a strike.",
                    back,
                )
            self.reads.dry = False
            self.runner.pump()  # nothing starts while in doubt

    def _claim(self, credit: int, now: float) -> None:
        backlog, name = self.backlog, self.owner.name
        others = backlog.lift()
        landed = others.pop(name, [])
        most = credit + len(landed)
        if dry := self.reads.dry:  # these jobs came alone
            order, turn = landed, 0
        else:
            order, turn = self.lists.order(), self.lists.equals
        starts = max(0, self.runner.free() - len(backlog.ready))
        try:
            claims = self.owner.claim(order, most, turn, landed, starts)
        except RedisError:
            self.owner.leases.doubt = True
            raise
        if name != self.owner.name or not claims.registered:
            others[name] = landed
        for whose, lists in others.items():  # of nobody any more
            self.owner.unland(whose, lists)
        backlog.ready.extend(claims.jobs)
        for name, text in claims.errors:
            self.reads.refused(name, text)
        if dry or not claims.registered:  # somebody removes our row faster than we write it
            return
        for claimed in claims.jobs:
            self.lists.served(claimed.job.queue_list)
        self._next_look = now + POLL_INTERVAL
        self.reads.dry = claims.fell_short(most)

    def _is_ours(self, job: Job) -> bool:
        """False where its owner is none any more, and it goes back; nobody here has started it."""
        if job.owner == self.owner.name:
            return True
        self.owner.leases.requeue([job])
        return False

    def claim_one(self, lists: Mapping[str, int]) -> Claimed | None:
        """One job now (``basic_get``) from these lists; one that was claimed ahead comes first."""
        self.join({**self.lists.expires, **lists})
        self._mind_connections()
        alone = self.probation.has_the_floor([*lists])
        self.reads.call_off([read for read in self.reads.armed if read.queue_list in lists])
        if any(name in lists for _, name in self.backlog.landed):
            self._claim(0, monotonic())
        for claimed in [c for c in self.backlog.ready if c.job.queue_list in lists]:
            self.backlog.ready.remove(claimed)
            if self._is_ours(claimed.job):
                return claimed
        if alone:
            return None
        claims = self.owner.claim([*lists], 1, 1)
        for name, text in claims.errors:
            raise ResponseError(f"queue list {name}: {text}")
        return claims.jobs[0] if claims.jobs else None

    @property
    def deliverable(self) -> bool:
        return bool(self.backlog.ready) and not self.owner.stopping

    def deliver(self) -> bool:
        """Deliver one job to the consumer; False when it came to nothing."""
        if armed := self.reads.armed:
            left, unlimited = self.channel.qos.credit(), self.channel.qos.unlimited
            # If a callback runs the job in this thread, what lands meanwhile waits for it; and a
            # solo pool could not even requeue that.
            if self.poller.inline or not (left or unlimited):
                self.reads.call_off(armed[0 if self.runner.inline else left :])
        try:
            claimed = self.backlog.ready.popleft()
        except IndexError:  # given back a moment ago: the process is stopping
            return False
        if not self._is_ours(claimed.job):
            return False
        self._delivering = get_ident()
        try:
            delivered: bool = self.channel.deliver(claimed)
        finally:
            self._delivering = 0
        self.owner.leases.delivered(claimed.job)
        if self.runner.inline and self.owner.leases.unsent:  # it has not begun, and took none along
            self.owner.leases.post()
        return delivered

    @property
    def delivers_the_last(self) -> bool:
        """Whether this is called back from the delivery of the last job."""
        return self._delivering == get_ident() and not self.backlog.ready

    def _landed(self, whose: str, queue_list: str, waited: float) -> None:
        if whose != self.owner.name or not self.channel.qos.credit():
            return self.owner.unland(whose, [queue_list])
        comes_on = bool(self.backlog) or waited < AT_ONCE
        self.backlog.landed.append((whose, queue_list))
        self.reads.dry = self.reads.dry and not comes_on

    def requeue(self, jobs: Iterable[Job], where: str = "front") -> None:
        self.owner.leases.requeue(jobs, where)
        self.poller.wake()

    def put_aside(self) -> None:
        """Give back what is on its way to a consumer."""
        self.reads.call_off(self.reads.armed)
        self.requeue_unseen()

    def requeue_unseen(self, lists: Collection[str] | None = None) -> int:
        """Give back what landed, and then what was claimed before; how many of these. Any thread
        may."""
        for whose, names in self.backlog.lift(lists).items():
            self.owner.unland(whose, names)
        if claimed := self.backlog.take(lists):  # else a closing channel asks for each queue
            self.requeue(claimed)
        return len(claimed)

    def cancel(self, lists: Collection[str] | None = None) -> None:
        """Give back what came from some lists, or from any: nobody consumes it; never raises."""
        reads = [r for r in self.reads.armed if lists is None or r.queue_list in lists]
        try:
            self.reads.call_off(reads)
        except (RedisError, OSError):
            self.owner.leases.doubt = True
        self.reads.close(None if lists is None else reads)
        self.requeue_unseen(lists)
