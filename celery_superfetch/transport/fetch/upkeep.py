"""Keeps the registration of one channel, and its connections, in order.

The fetch loop calls this before each action: no job may be claimed for an owner that the server
does not know, nor started while a reply is lost. Nothing is kept here that a death of the process
could lose: the reaper reads the owner's record, which is on the server.
"""

from __future__ import annotations

from collections.abc import Mapping

from kombu.log import get_logger

from ...model.log_text import one_line_each
from ...owner.owner import Owner
from .reads import BlockingReads

logger = one_line_each(get_logger(__name__))


class Upkeep:
    """The registration and the repairs of one channel."""

    def __init__(self, owner: Owner, reads: BlockingReads) -> None:
        self.owner, self.reads = owner, reads
        #: Queue list -> ms of its x-expires, as they were registered last.
        self._registered: Mapping[str, int] = {}
        self._outages = owner.outages

    def register(self, expires: Mapping[str, int]) -> None:
        """Register this process and its queue lists (-> ms of x-expires), unless that is known."""
        self.owner.check_process()
        # By identity: ``QueueLists`` makes another mapping at each change, and a tick is cheap.
        if expires is not self._registered or not self.owner.name:
            self.owner.join(id(self), expires)
            self._registered = expires
            self.reads.queues_are_empty = False  # these are other queues: a claim looks at them

    def leave(self) -> None:
        """Settle what the channel leaves; with the last channel, unregister. Never raises."""
        self.owner.leave(id(self), may_land=self.reads.may_land_later)

    def repair(self) -> None:
        """Replace a read that is overdue, carry out deferred calls, and reconcile an owner that is
        in doubt."""
        owner, leases = self.owner, self.owner.leases
        if owner.has_deferred_calls and not owner.runner.endless:  # else maintenance does
            owner.catch_up()
        if self.reads.overdue:
            logger.warning("A blocking read got no reply in time; its connection is replaced.")
            leases.doubt = True
        if self._outages != owner.outages:
            self._outages = owner.outages
            leases.doubt = True
        if leases.is_reconcile_due:
            self._reconcile()

    def _reconcile(self) -> None:
        """Requeue what the server has for this owner without a lease, and start what waited."""
        # First: what has landed is requeued, also a job that a read would report a moment later.
        self.reads.close()
        if requeued_count := self.owner.reconcile():
            logger.warning(
                "%d jobs were claimed by calls whose reply was lost: they are back on their "
                "queues, without a strike.",
                requeued_count,
            )
        self.reads.queues_are_empty = False
        self.owner.runner.pump()  # no job starts while the owner is in doubt
