"""The face of this room: what a process is to those that fetch, run and reap for it. It is made of
what it holds (`in_flight`), what of that was lost (`lost_runs`) and its heart, which nobody else
reaches through it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic
from typing import Any

from ..model.facts import Facts
from ..model.job import Claimed, Job
from ..model.permit import clock
from ..store.wire.connections import Params
from .in_flight.jobs import State
from .membership import Membership


class Owner(Membership):
    """A process that claims. Thread-safe, as its parts are."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        held, runs, heart = self.in_flight, self.lost_runs, self.heart
        #: Held over what nothing may start, nor leave, in between.
        self.lock = held.lock
        # What becomes of jobs, as its parts have it.
        self.wait, self.delivered = held.wait, held.delivered
        self.begin, self.end, self.cut_short = held.begin, held.end, held.cut_short
        self.ack, self.requeue, self.park = held.ack, held.requeue, held.park
        self.requeue_waiting, self.may_start = held.requeue_waiting, held.may_start
        self.put_on_probation = held.put_on_probation
        self.flush, self.post, self.unrecord = held.flush, held.post, held.unrecord
        self.rest = held.rest
        self.recover_or_kill = runs.recover_or_kill
        self.kill, self.kill_if_over_limit = runs.kill, runs.kill_if_over_limit
        self.bury, self.quarantine, self.sent_anew = runs.bury, runs.quarantine, runs.sent_anew
        # What its parts know of a job, and of the others.
        self.holds, self.runs = held.jobs.__contains__, held.jobs.runs
        self.state_of, self.key_of = held.jobs.get, held.lists.key_of
        self.has_handed_on = held.lists.has_handed_on
        self.silence = heart.silence
        #: The ids of its blocking connections, which are cut when it is reaped.
        self.blocking = heart.blocking
        #: Sends what waits for a job, to let it land under one of its names.
        self.wait_on = held.lists.wait

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

    # -- what others ask of it

    def claims_of(self, name: str) -> dict[str, Job]:
        """Its jobs under one of its names, by their claim ids."""
        with self.lock:
            return {job.claim_id: job for job in self.in_flight.jobs if job.owner == name}

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

    def tell_of_stuck(self, jobs: tuple[tuple[str, str, str, int], ...]) -> None:
        """Have the next heartbeat tell of them, as in ``Facts``."""
        self.heart.stuck_jobs = jobs

    def tell_of_started(self, jobs: tuple[tuple[int, int], ...]) -> None:
        """Write with the next heartbeat when jobs started, as in ``Facts``."""
        self.heart.started_jobs = jobs

    @property
    def alone(self) -> Job | None:
        """The job on probation that has this process for itself."""
        return self.in_flight.jobs.alone

    @property
    def outlived(self) -> int:
        """How many jobs run on although their channel is closed."""
        return self.in_flight.jobs.counts[State.OUTLIVED]

    @property
    def busy(self) -> bool:
        return self.runner.busy(self.in_flight.jobs.unsettled)

    @property
    def has_deferred_calls(self) -> bool:
        """Whether ``catch_up`` has something to do besides what is sent."""
        return bool(self.overdue or self.in_flight.lost_jobs)

    @property
    def unsent(self) -> bool:
        return self.in_flight.unsent

    @property
    def unread(self) -> bool:
        return self.in_flight.unread

    def deadline(self, job: Job) -> float:
        """Until when a job of its may begin (``clock``); 0: not now."""
        return self.in_flight.permit.deadline(job.owner)

    def is_former(self, job: Job) -> bool:
        """Whether a job came under a name that it has no more."""
        return self.in_flight.permit.holder not in (None, job.owner)

    # -- what it does not know for sure

    def doubt(self) -> None:
        """A reply was lost: the server may have jobs for it that nobody here knows."""
        self.in_flight.doubt = True

    @property
    def in_doubt(self) -> bool:
        return self.in_flight.lost_claims.due

    def reconcile(self) -> int:
        """Give back what the server has for it and nobody here knows; the number of jobs."""
        return self.in_flight.lost_claims.reconcile(self.name, self.facts.lists)

    # -- suspects, and jobs for later

    @property
    def suspects(self) -> frozenset[str]:
        """Queue lists with jobs on probation, as far as it has heard."""
        return self.in_flight.suspects

    def heard_of_suspects(self, lists: Collection[str]) -> None:
        self.in_flight.suspects |= {*lists}

    def found_no_suspects(self, lists: Collection[str]) -> None:
        self.in_flight.suspects -= {*lists}

    def claim_alone(self, queue_list: str, solitude: Callable[[int], float]) -> Claimed | None:
        """Claim the next suspect of a queue list, if there is one and nothing runs here; nothing
        starts beside it for so many seconds, by its level."""
        with self.lock:  # another channel may ask whether it is over
            claimed = self.in_flight.claim_alone(self.name, queue_list)
            if claimed is not None:
                self.in_flight.jobs.alone_until = monotonic() + solitude(claimed.probation)
            return claimed

    def claim_alongside(self, queue_list: str, solitude: Callable[[int], float]) -> Claimed | None:
        """Claim the next suspect of a queue list, if it need not run alone any more; no other
        suspect starts beside it for so many seconds, by its level."""
        with self.lock:
            claimed = self.in_flight.claim_alongside(self.name, queue_list)
            if claimed is not None:
                self.in_flight.jobs.alone_until = monotonic() + solitude(claimed.probation)
            return claimed

    def end_solitude(self) -> Job | None:
        """Let others start beside the suspect that has had its time alone; that one."""
        jobs = self.in_flight.jobs
        with self.lock:
            alone = jobs.alone
            if alone is None or monotonic() < jobs.alone_until:
                return None
            jobs.alone = None
            return alone

    def release_due(self) -> None:
        """Put what is due on its queue: any worker may have parked it."""
        held, asked = self.in_flight, clock()
        if held.parking.is_due:
            released = held.parked.release(held.expires)
            held.parking.heard(released.now, released.next, asked)

    def recall(self, task_ids: Collection[str]) -> int:
        """Have parked jobs go to their queues at once; how many."""
        if count := self.in_flight.parked.call(task_ids):
            self.in_flight.parking.parked(0)
        return count
