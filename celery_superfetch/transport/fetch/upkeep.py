"""Keeps the registration of one channel, and its connections, in order.

The fetch loop calls this before each action: no job may be claimed for an owner that the server
does not know, nor started after a lost reply before a reconcile has requeued the jobs of such
claims as this process does not know. The channel calls ``leave`` when it closes. If the process
dies, nothing that is in memory here is missed: the reaper reads the owner's record, which is on the
server.
"""

from __future__ import annotations

from collections.abc import Mapping

from kombu.log import get_logger

from ...model.log_text import one_line_each
from ...owner.owner import Owner
from .blocking_reads import BlockingReads

logger = one_line_each(get_logger(__name__))


class Upkeep:
    """The registration and the repairs of one channel."""

    def __init__(self, owner: Owner, reads: BlockingReads) -> None:
        self.owner, self.reads = owner, reads
        #: Queue list -> ms of its x-expires, as they were registered last.
        self._registered: Mapping[str, int] = {}
        #: As of the last ``repair``. After a further outage the owner needs a reconcile.
        self._outages = owner.outages

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
        if owner.has_deferred_calls and not owner.executor.endless:  # a worker's maintenance thread
            owner.catch_up()  # does this in a worker
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

    def _reconcile(self) -> None:
        """Requeue the jobs that the server has for this owner and that have no lease in this
        process; then start the jobs that waited for that."""
        # The reads are closed first: a job that a read has brought and not reported yet is in its
        # landing list then, and is requeued with the others.
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
