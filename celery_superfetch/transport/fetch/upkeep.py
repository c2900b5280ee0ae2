"""Keeps the registration of one channel, and its connections, in order.

The fetch loop calls this before each action: no job may be claimed for an owner that the server
does not know, nor started after a lost reply before a reconcile has requeued the jobs of such
claims as this process does not know. A worker's bootstep (``bootsteps.Guarded``) calls ``register``
before the first tick. The channel calls ``leave`` when it closes. If the process dies, nothing that
is in memory here is missed: the reaper reads the owner's record, which is on the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from kombu.log import get_logger
from redis.exceptions import ResponseError

from ...model.log_text import one_line_each
from ...model.outage import Outage
from ...owner.owner import Owner
from ...store.redis.trouble import advice_on_refusal
from .blocking_reads import BlockingReads

logger = one_line_each(get_logger(__name__))

REFUSED_INTERVAL_S = 5.0  # between two tries of deferred calls, after the server refused one


class Upkeep:
    """The registration and the repairs of one channel."""

    def __init__(self, owner: Owner, reads: BlockingReads) -> None:
        self.owner, self.reads = owner, reads
        #: Queue list -> ms of its x-expires, as they were registered last.
        self._registered: Mapping[str, int] = {}
        #: As of the last ``repair``. After a further outage the owner needs a reconcile.
        self._outages = owner.outages
        self._refused_until = 0.0  # until then no deferred call is made (monotonic s)
        self._refusals = Outage(logger)

    def register(self, expires: Mapping[str, int]) -> None:
        """Register this process and its queue lists (-> ms of x-expires), unless they are
        registered."""
        self.owner.check_process()
        # ``QueueLists`` makes a new mapping at each change. A comparison by identity costs each
        # tick nothing, also with a thousand lists.
        if expires is not self._registered or not self.owner.name:
            self.owner.join(id(self), expires)
            self._registered = expires
            self.reads.queues_are_empty = False  # a claim has to look at the new queues

    def leave(self) -> None:
        """Send what is pending for the channel, and unregister with the last channel of the owner.
        An error of the server is logged, and not raised."""
        self.owner.leave(id(self), may_land=self.reads.may_land_later)

    def repair(self) -> None:
        """Make deferred calls, if this is a plain consumer, and reconcile an owner that needs
        it, as after a blocking read that is overdue; the reconcile closes the read."""
        owner, leases = self.owner, self.owner.leases
        # In a worker the maintenance thread makes them.
        if owner.has_deferred_calls and not owner.executor.endless:
            self._catch_up()
        if self.reads.overdue:
            logger.warning(
                "No reply in time on a connection that waits for a job: it is replaced, and jobs "
                "whose delivery was lost are requeued. If this repeats, check Redis and the "
                "network."
            )
            leases.needs_reconcile = True
        if self._outages != owner.outages:
            self._outages = owner.outages
            leases.needs_reconcile = True
        if leases.is_reconcile_due:
            self._reconcile()

    def _catch_up(self) -> None:
        """Make the deferred calls. If the server refuses one, log that, and try again after
        ``REFUSED_INTERVAL_S``: if it raised, a call that is refused for good would keep this
        consumer from claiming."""
        if monotonic() < self._refused_until:
            return
        try:
            self.owner.catch_up()
        except ResponseError as exc:
            self._refused_until = monotonic() + REFUSED_INTERVAL_S
            self._refusals.failed(
                "Redis refused to settle a job of this consumer (%s, owner=%s): the job stays in "
                "Redis, in this consumer's private list. Other jobs continue. Tried again every "
                "%g s. %s.",
                exc,
                self.owner.name,
                REFUSED_INTERVAL_S,
                advice_on_refusal(exc),
            )
        else:
            self._refusals.ended("Redis accepts the settlement of this consumer's jobs")

    def _reconcile(self) -> None:
        """Requeue the jobs that the server has for this owner and that have no lease in this
        process; then start the jobs that waited for that."""
        # After a lost reply the reads are closed first: a job that a read has brought and not
        # reported yet is in its landing list then, and is requeued with the others. A minute after
        # that, ``LostClaims`` makes a second check due, for claims that come late. It leaves the
        # reads open: a closed read needs a reconcile, which has a second check again, so an idle
        # owner would close and open its reads each minute for ever.
        if self.owner.leases.needs_reconcile:
            self.reads.close()
        if requeued_count := self.owner.reconcile():
            logger.info(
                "Jobs requeued without a strike (jobs=%d, owner=%s): Redis had moved them to this "
                "worker, in replies that were lost.",
                requeued_count,
                self.owner.name,
            )
        self.reads.queues_are_empty = False
        self.owner.executor.pump()  # starts the jobs that waited for the reconcile
