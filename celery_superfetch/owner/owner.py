"""The face of this room: what a process is to those that fetch, run and reap for it.

``leases`` holds the jobs in flight, ``settlement`` ends those whose run was lost.
"""

from __future__ import annotations

from ..model.facts import Facts
from ..model.silence import Silence
from ..store.private_lists import PrivateLists
from ..store.wire.connections import Params
from .membership import Membership


class Owner(Membership):
    """A process that claims. Thread-safe, as its parts are."""

    @property
    def private_lists(self) -> PrivateLists:
        """The private lists of this owner on the server."""
        return self.leases.lists

    @property
    def silence(self) -> Silence:
        """The peers that are silent, as this process has watched them by its own heartbeats."""
        return self.heart.silence

    @property
    def blocking(self) -> set[int]:
        """The ids of its blocking connections, which the reaper closes when it reaps this owner."""
        return self.heart.blocking

    @property
    def facts(self) -> Facts:
        """What the registry was told last."""
        return self.heart.facts

    @property
    def stopping(self) -> bool:
        """Whether the process is to stop: it claims and starts no more."""
        return self.heart.stopping

    @stopping.setter
    def stopping(self, stopping: bool) -> None:
        self.heart.stopping = stopping

    @property
    def failing(self) -> bool:
        """Whether the process stops because of an error of its own."""
        return self.heart.failing

    @failing.setter
    def failing(self, failing: bool) -> None:
        self.heart.failing = failing

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The other owners of this host, as of the last heartbeat."""
        return tuple(name for name in self.heart.neighbours if name != self.name)

    @property
    def params(self) -> Params:
        """Where its server is; after a failover another."""
        return self.heart.params

    @property
    def outages(self) -> int:
        """How often its connections had to be distrusted."""
        return self.heart.outages

    def tell_of_started(self, jobs: tuple[tuple[int, int], ...]) -> None:
        """Write with the next heartbeat when jobs started, as in ``Facts``."""
        self.heart.started_jobs = jobs

    @property
    def busy(self) -> bool:
        return self.runner.busy(self.leases.jobs.unsettled)

    @property
    def has_deferred_calls(self) -> bool:
        """Whether ``catch_up`` has something to do besides what is sent."""
        return bool(self.overdue or self.leases.lost_jobs)

    def reconcile(self) -> int:
        """Requeue jobs that the server has for this owner and that have no lease; return how
        many."""
        return self.leases.lost_claims.reconcile(self.name, self.facts.lists)
