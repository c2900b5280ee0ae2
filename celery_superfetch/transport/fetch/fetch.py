"""When to claim, when to block, and what to do with what comes: one per channel."""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from time import monotonic
from typing import Any

from kombu.log import get_logger
from redis.exceptions import RedisError, ResponseError

from ...model.job import Claimed, Job
from ...owner.membership import Membership
from .backlog import Backlog
from .consumer import Consumer
from .probation import Probation
from .queue_lists import POLL_INTERVAL
from .reads import COMPLAINT_INTERVAL, BlockingReads

logger = get_logger(__name__)


class Fetch:
    """Fetches jobs for one channel.

    While there are jobs, one script claims as many as the prefetch allows; when the lists are
    dry, a blocking read waits on each. Nothing polls an idle worker's lists.
    """

    def __init__(self, consumer: Consumer, poller: Any, membership: Membership) -> None:
        self.consumer = consumer
        self.poller = poller
        self.membership = membership
        self.in_flight = membership.in_flight
        self.lists = consumer.lists
        self.backlog = Backlog()
        self.reads = BlockingReads(membership, poller, self._accept, self._come_again)
        self.probation = Probation(consumer, poller, membership, self.backlog, self.reads)
        self._dry = False
        self._look_at = 0.0
        self._refused_until = self._silent_until = 0.0
        #: The oldest ack when acks were last left to the next job.
        self._left: Job | None = None
        self._joined: dict[str, int] = {}
        self._outages = membership.heart.outages
        #: The thread that delivers a job at this moment.
        self._delivering = 0

    # -- one turn of the loop

    def turn(self) -> None:
        """Settle, claim or block, as the prefetch and the lists allow.

        Raises:
            redis.exceptions.RedisError: the broker cannot be asked; the consumer reconnects.
        """
        if self.consumer.closed:
            return
        self.membership.check_process()
        self.in_flight.runner.pump()
        now = monotonic()
        if now < self._refused_until:
            return
        try:
            self._turn()
        except ResponseError as exc:
            # A full disk, too few replicas: that passes, and a worker that ended would help
            # nobody.
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
        if not lists:
            self.in_flight.flush()
            return
        self.join(self.consumer.list_expires())
        self._mind_connections()
        if self.membership.heart.stopping:
            self.consumer.give_back_waiting()
            self.in_flight.flush()
            return
        if self.probation.has_the_floor(lists):
            self._dry = False
            alone = self.in_flight.jobs.alone
            self.in_flight.flush()
            if alone is not None and self.in_flight.jobs.alone is None:
                self.poller.ring()
            return
        credit = self.consumer.qos.credit()
        now = monotonic()
        if self._dry and now >= self._look_at and not self.reads.can_cover(lists):
            self._dry = False
        if self.backlog.unconfirmed or (credit and not self._dry and self._runs_short(credit)):
            self._claim(lists, credit, now)
        elif self._has_to_settle() and not self._goes_with_the_next():
            self.in_flight.post()
        if self._dry and self.consumer.qos.credit():
            self.reads.wait_on(lists)

    def _has_to_settle(self) -> bool:
        """Whether something is to be sent, or there is the leisure to read answers."""
        return self.in_flight.outbox.unsent or (
            self.in_flight.outbox.unread and not self.backlog.ready
        )

    def _goes_with_the_next(self) -> bool:
        """Whether the next job takes the acks along, with the record of its start.

        In the solo pool it does so here and now. One that did not (its time has not come) leaves
        them to the next turn.
        """
        if not (self.in_flight.runner.inline and self.backlog.ready):
            return False
        oldest = self.in_flight.outbox.oldest_ack
        if oldest is None or oldest is self._left:
            return False
        self._left = oldest
        return True

    def _runs_short(self, credit: int) -> bool:
        """Whether it is time to claim.

        While jobs wait here for whoever runs them nobody is idle, and rather than one for each
        that ends, more are claimed at once: as soon as there is room for as many as wait. Where
        this thread may run them, it claims when it has none.
        """
        waiting = len(self.backlog)
        if self.poller.inline and waiting:
            return False
        limit = self.membership.config.claim_limit
        held = self.consumer.qos.in_use() - waiting
        reserve = waiting + min(held, self.in_flight.runner.reserve())
        return waiting < limit and credit >= min(reserve, limit)

    def join(self, expires: dict[str, int]) -> None:
        """Register this process and its queue lists, unless the server knows them already.

        Arguments:
            expires: queue list -> ms of its queue's x-expires; 0 for none.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
            UnsupportedBroker: it cannot carry the guarantee.
        """
        changed = expires is not self._joined and expires != self._joined
        if changed or not self.membership.joined:
            self.membership.join(id(self), expires)
            self._joined = expires

    def _mind_connections(self) -> None:
        if self.membership.overdue and not self.in_flight.runner.endless:  # else maintenance does
            self.membership.catch_up()
        if self.reads.overdue:
            logger.warning("A blocking read got no reply in time; its connection is replaced.")
            self.in_flight.doubt = True
        if self._outages != self.membership.heart.outages:
            self._outages = self.membership.heart.outages
            self.in_flight.doubt = True
        if self.in_flight.in_doubt:
            # With no claim on its way, what the private lists hold beyond what we do is what
            # lost replies spoke of.
            self.reads.close()
            found = self.in_flight.reconcile(self.membership.owner, self.membership.facts.lists)
            if found:
                logger.warning("%d claims whose reply was lost were given back.", found)
            self._dry = False
            self.in_flight.runner.pump()  # nothing starts while in doubt

    def _claim(self, lists: list[str], credit: int, now: float) -> None:
        backlog = self.backlog
        confirm, backlog.unconfirmed = self._still_ours(backlog.unconfirmed), []
        reach = None if confirm else self.lists.reach(credit)
        order = self.lists.order(reach)
        starts = max(0, self.in_flight.runner.free() - len(backlog.ready))
        try:
            claims = self.membership.claim(order, credit, self.lists.equals, confirm, starts)
        except RedisError:
            self.in_flight.requeue(reversed(confirm))
            raise
        if not claims.registered:  # somebody removes our row faster than we write it
            self.in_flight.requeue(reversed(confirm))
            return
        backlog.ready.extend(filter(None, claims.confirmed))
        backlog.ready.extend(claims.jobs)
        for name, text in claims.errors:
            self.reads.refused(name, text)
        for claimed in claims.jobs:
            self.lists.served(claimed.job.queue_list)
        self._look_at = now + POLL_INTERVAL
        short = claims.fell_short(credit)
        self._dry = short and reach is None
        if short:
            self.lists.filled_by(None)
            if reach is not None:
                left = min(credit - len(claims.jobs), self.consumer.qos.credit())
                self._claim(lists, left, now)
        elif claims.jobs:
            self.lists.filled_by(claims.reach(order))

    def _still_ours(self, jobs: list[Job]) -> list[Job]:
        """Without those of an owner that we were before we were taken for dead."""
        for job in jobs:
            if job.owner != self.membership.owner:
                self.in_flight.drop(job)
        return [job for job in jobs if job.owner == self.membership.owner]

    def claim_one(self, lists: list[str]) -> Claimed | None:
        """One job from ``lists`` now (``basic_get``); one that was claimed ahead comes first."""
        self.membership.check_process()
        these = {name: self.consumer.expires_of(name) for name in lists}
        self.join({**self.consumer.list_expires(), **these})
        self._mind_connections()
        alone = self.probation.has_the_floor(lists)
        ahead = self._take_ahead(lists)
        if ahead is not None or alone:
            return ahead
        claims = self.membership.claim(lists, 1, 1)
        for name, text in claims.errors:
            raise ResponseError(f"queue list {name}: {text}")
        return claims.jobs[0] if claims.jobs else None

    def _take_ahead(self, lists: list[str]) -> Claimed | None:
        self.reads.call_off([read for read in self.reads.armed if read.queue_list in lists])
        if any(job.queue_list in lists for job in self.backlog.unconfirmed):
            self._claim(self.lists.names, 0, monotonic())
        for claimed in [c for c in self.backlog.ready if c.job.queue_list in lists]:
            self.backlog.ready.remove(claimed)
            if claimed.job.owner == self.membership.owner:
                return claimed
            self.in_flight.lose(claimed.job)
        return None

    def ahead(self, lists: Iterable[str]) -> int:
        """Jobs from ``lists`` that were claimed and that no consumer has seen."""
        names = set(lists)
        return sum(job.queue_list in names for job in self.backlog.jobs)

    # -- delivery

    @property
    def deliverable(self) -> bool:
        """True while there is a job to deliver."""
        return bool(self.backlog.ready) and not self.membership.heart.stopping

    def deliver(self) -> bool:
        """Deliver one job to the consumer; False when there was none."""
        if not self.deliverable:
            return False
        if armed := self.reads.armed:
            left = self.consumer.qos.credit()
            if not left or self.poller.inline:
                # A callback that runs the job here would keep a surplus claim waiting for it.
                # Where it is sure to, nobody could even give back what comes meanwhile.
                self.reads.call_off(armed[0 if self.in_flight.runner.inline else left :])
        try:
            claimed = self.backlog.ready.popleft()
        except IndexError:  # given back a moment ago: the process is stopping
            return False
        if claimed.job.owner != self.membership.owner:
            # We were taken for dead since the claim; the job was given to somebody else, and
            # nobody here has started it.
            self.in_flight.drop(claimed.job)
            return False
        self._delivering = get_ident()
        try:
            delivered = self.consumer.deliver(claimed)
        finally:
            self._delivering = 0
        self.in_flight.starts.delivered(claimed.job)
        return delivered

    @property
    def delivers_the_last(self) -> bool:
        """Whether this is the callback of the last job that was claimed."""
        return self._delivering == get_ident() and not self.backlog.ready

    @property
    def must_look(self) -> bool:
        """True while some lists have to be looked at once a second."""
        if monotonic() < self._refused_until:
            return True
        return bool(self._joined) and not self.reads.can_cover(self._joined)

    def _accept(self, job: Job, asked: float) -> None:
        if not self.in_flight.take(job, asked):
            return
        if self.consumer.qos.credit():
            self.backlog.unconfirmed.append(job)
            self._dry = False  # more may have come with it
        else:
            self.in_flight.requeue([job])

    def _come_again(self) -> None:
        """There is something in a list on which no read waits."""
        self._dry = False

    def cancel(self, lists: set[str]) -> None:
        """Stop fetching from some lists; what was claimed from them goes back."""
        try:
            self.reads.call_off([read for read in self.reads.armed if read.queue_list in lists])
        except RedisError:
            self.in_flight.doubt = True
        self.reads.close(lists)
        self.in_flight.requeue(self.backlog.take_out(lists))

    def requeue(self, jobs: Iterable[Job], where: str = "front") -> None:
        """Give jobs back to their queues; what fails now is tried again."""
        self.in_flight.requeue(jobs, where)
        self.poller.wake()

    # -- end

    def close(self) -> None:
        """The channel closes: nothing is claimed from here on; never raises."""
        try:
            self.cancel(self.reads.lists | {job.queue_list for job in self.backlog.jobs})
        except (RedisError, OSError) as exc:
            logger.warning("Blocking reads could not be called off: %s", exc)
            self.in_flight.doubt = True
        self.reads.close()

    def leave(self) -> None:
        """The channel is closed and gave back what it could; never raises."""
        self.membership.leave(id(self), answered=self.reads.answered)
