"""Two threads of a worker's main process: one finds dead peers and recovers their jobs, the other
moves scheduled jobs that are due to their queues.

``bootsteps.Maintenance`` starts both; ``bootsteps.Guarded`` makes an ``OwnerMaintenance`` for the
pass at the worker's start. An *owner* is the identity under which this process claims
jobs in one database: a process that consumes from two brokers has two. Each second the maintenance
thread makes a *round* for each owner of the process. A round makes the deferred calls of the owner
(those that failed while the server was away, or that another thread must not wait for), checks the
processes of *peers* (other owners on this host), and takes some steps of the reap passes that are
under way. In a warm shutdown the rounds continue until the pool has no job left.

If the process dies in a pass, the next pass of any reaper recovers the jobs that are left. Other
workers, and beat, move the jobs that are due. In memory, and lost, are the deferred calls (their
jobs are still in Redis, in the private list or parked), run counts since the last heartbeat, and
what this process knew of stale owners: the next observer watches from the beginning.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Collection
from functools import cache, partial
from time import monotonic, time

from celery import Celery
from celery.utils.log import get_logger
from redis.exceptions import RedisError, ResponseError

from ..app.reaper import reaper_of, scheduled_pass_in_steps
from ..model import fork_gate
from ..model.job import claim_number
from ..model.log_text import one_line_each
from ..model.outage import Outage
from ..model.owner_record import MEMORY_STEP, OwnerRecord
from ..model.process import ProcessImage, memory_of, own_pid
from ..model.verdict import MISSED_HEARTBEATS, judge
from ..owner.owner import Owner
from ..owner.process_owners import owners_of_process
from ..reaper.drain import Steps
from ..reaper.evidence import local_evidence
from ..reaper.report import Report
from ..store.redis.server import FULL_TEXT
from ..store.redis.trouble import advice_on_refusal

logger = one_line_each(get_logger(__name__))

#: Seconds between two rounds of the maintenance thread, in which the check of this host's processes
#: sends no command; and between two releases of due jobs.
HOST_CHECK_INTERVAL_S = 1.0

#: Number of peers on its host that each worker checks. One would be enough if all workers knew the
#: same peers and none could be frozen.
PEERS_CHECKED = 4

#: Seconds of a round after which passes pause until the next round, after one step at least. A pass
#: over 100,000 jobs takes many rounds, and the other work of a round is due each second.
PASS_SHARE_S = 0.25

#: Most passes that are under way at once. They take their steps in turn, so each slows the others.
PASSES_MAX = 8

#: The owner record has the start times of the jobs that have run longest, of so many at most: 3 kB.
STARTED_JOBS_MAX = 100


class MaintenanceThread(threading.Thread):
    """The thread that makes the rounds of all owners of this process."""

    def __init__(self, app: Celery) -> None:
        super().__init__(name="superfetch-maintenance", daemon=True)
        self.over = threading.Event()
        #: Owner -> its maintenance, made at the first call; owner -> its outage, since each owner
        #: may be on another server.
        self._maintenance_of = cache(partial(OwnerMaintenance, app))
        self._outage_of = cache(lambda owner: Outage(logger))

    def run(self) -> None:
        fork_gate.mark_thread()
        pause = HOST_CHECK_INTERVAL_S
        while not self.over.wait(pause):
            pause = HOST_CHECK_INTERVAL_S
            for owner in owners_of_process():
                if not owner.name:  # not registered: it has not consumed yet, or has left
                    continue
                outage: Outage = self._outage_of(owner)
                try:
                    # A child that the pool forks in the middle would inherit locks that this thread
                    # holds. (A pass keeps forks off for each batch by itself.)
                    with fork_gate.kept_off():
                        maintenance = self._maintenance_of(owner)
                        maintenance.catch_up()
                    if outage.lasts:
                        # Most rounds send no command, so they succeed while the server is away. If
                        # such a round counted as the end of the outage, the log would report an end
                        # again and again.
                        maintenance.reaper.database.server_time()
                    maintenance.tick(monotonic())
                    if maintenance.passes:
                        pause = 0.0
                    outage.ended("Maintenance works")
                except ResponseError as exc:
                    outage.failed(
                        "Redis refused a command of maintenance (%s): this worker may detect no "
                        "dead workers until Redis accepts it. Tried again every %g s. %s.",
                        exc,
                        HOST_CHECK_INTERVAL_S,
                        advice_on_refusal(exc),
                    )
                except (RedisError, OSError) as exc:
                    outage.failed(
                        "Maintenance cannot reach Redis (%s): this worker detects no dead "
                        "workers until it can. Tried again every %g s. Check the server and the "
                        "network.",
                        exc,
                        HOST_CHECK_INTERVAL_S,
                    )
                except Exception:  # without this thread the worker would reap no more
                    logger.exception(
                        "Maintenance failed and continues. If this repeats, the worker detects "
                        "no dead workers: restart it, and report the error with its traceback."
                    )


class ReleaseThread(threading.Thread):
    """The thread that moves scheduled jobs that are due to their queues, once a second. In the
    maintenance thread they would wait for a long pass, or for a slow receiver of a signal."""

    def __init__(self) -> None:
        super().__init__(name="superfetch-release", daemon=True)
        self.over = threading.Event()

    def run(self) -> None:
        fork_gate.mark_thread()
        while not self.over.wait(HOST_CHECK_INTERVAL_S):
            for owner in owners_of_process():
                if not owner.name:
                    continue
                try:
                    owner.leases.release_due()
                except (RedisError, OSError) as exc:  # maintenance logs it at WARNING
                    logger.debug("Scheduled jobs could not be moved to their queues: %s.", exc)
                except Exception:
                    logger.exception(
                        "This worker could not move due scheduled jobs to their queues. Tried "
                        "again in %g s. If this repeats, other workers and beat move them: "
                        "restart this worker, and report the error with its traceback.",
                        HOST_CHECK_INTERVAL_S,
                    )


class OwnerMaintenance:
    """The maintenance of one owner (this process in one database). A pass of the reaper may take
    several rounds, with some steps in each."""

    def __init__(self, app: Celery, owner: Owner) -> None:
        self.owner = owner
        self.reaper = reaper_of(app, owner.client, owner)
        self._records: dict[str, OwnerRecord] = {}
        self._next_pass = self._next_count = self._next_memory = 0.0
        self._next_judged: dict[str, float] = {}
        self.passes: deque[Steps[Report]] = deque()  # those under way, the next in turn first
        self._refusals = Outage(logger)  # of the owner's deferred calls

    def catch_up(self) -> None:
        """Make the deferred calls of the owner. If the server refuses one, log that, and return:
        the server is there, so the rest of the round (the detection of dead workers) goes on."""
        try:
            self.owner.catch_up()
        except ResponseError as exc:
            self._refusals.failed(
                "Redis refused to settle a job of this worker (%s, owner=%s): the job stays in "
                "Redis, in this worker's private list, until Redis accepts it or this worker ends. "
                "Other jobs, and the detection of dead workers, continue. Tried again every %g s. "
                "%s.",
                exc,
                self.owner.name,
                HOST_CHECK_INTERVAL_S,
                advice_on_refusal(exc),
            )
        else:
            self._refusals.ended("Redis accepts the settlement of this worker's jobs")

    def tick(self, now: float) -> None:
        """Make one round. Raises RedisError if the server cannot be reached: then no owner is
        declared dead."""
        self.collect_start_times()
        if now >= self._next_memory:
            self._next_memory = now + self.reaper.config.heartbeat_interval
            self.measure_memory()
        # All workers find a dead peer, or a stale owner (which has missed two heartbeats), in the
        # same second. A lock lets one of them make the pass. After the death of one peer the pass
        # judges all owners of this host, since others may have died with it.
        if self._sees_death():
            self._reap(self.owner.host_peers, f"host:{ProcessImage.current().host}")
        if stale := self._stale_due(now):
            self._reap(stale, "remote")
        if now >= self._next_pass:
            self._next_pass = now + self.reaper.config.reap_interval
            self._begin(scheduled_pass_in_steps(self.reaper, self.owner.record.node))
        self._continue_passes(monotonic() + PASS_SHARE_S)
        # Last: a server over its memory limit refuses the counts, which must not stop the rest.
        if now >= self._next_count and self.owner.executor.run_counts:
            self._next_count = now + self.reaper.config.heartbeat_interval
            try:
                self.owner.executor.run_counts.count(self.reaper.database)
            except ResponseError as exc:
                if FULL_TEXT not in str(exc):
                    raise

    def collect_start_times(self) -> None:
        """Collect the start times of jobs that have run for longer than a heartbeat interval; the
        next heartbeat writes them into the owner record."""
        config, worker = self.owner.config, self.owner.executor.worker
        if worker is None:  # the owner is that of a plain kombu consumer, which has no pool
            return
        now, started = time(), list[tuple[int, int]]()
        for request in worker.superfetch_gate.running():
            at, delivery = request.time_start or now, request.delivery
            if delivery.owner is self.owner and now - at > config.heartbeat_interval:
                started.append((int(at), claim_number(delivery.job.claim_id)))
        # In a fixed order, so that the value changes only with the jobs: heartbeats send changes.
        oldest = heapq.nsmallest(STARTED_JOBS_MAX, started)
        self.owner.started_jobs = tuple((number, at) for at, number in oldest)

    def measure_memory(self) -> None:
        """Measure the memory of this process and of its pool's. The next heartbeat writes it into
        the owner record, if it has changed by ``MEMORY_STEP``."""
        pids = [pid for pid, _ in self.owner.executor.pids()]
        memory = memory_of([own_pid(), *pids])
        if abs(memory - self.owner.memory) >= MEMORY_STEP:
            self.owner.memory = round(memory / MEMORY_STEP) * MEMORY_STEP

    def _reap(self, owners: Collection[str], lock: str) -> None:
        if self.reaper.database.try_lock(lock, HOST_CHECK_INTERVAL_S / 2):
            self._begin(self.reaper.reap_in_steps(owners))

    def _begin(self, steps: Steps[Report]) -> None:
        """Add a pass, unless ``PASSES_MAX`` are under way: then a later pass finds its jobs."""
        if len(self.passes) < PASSES_MAX:
            self.passes.append(steps)

    def _continue_passes(self, until: float) -> None:
        """Take steps of the passes in turn until a time (monotonic s), one step at least."""
        while self.passes:
            steps = self.passes.popleft()  # one that raises is over
            try:
                next(steps)
            except StopIteration as end:
                self.add_suspects(end.value)
            else:
                self.passes.append(steps)
            if monotonic() >= until:
                return

    def add_suspects(self, report: Report) -> None:
        """Add the queue lists on which a pass has put jobs on probation (*suspects*, which run with
        no other job in their worker), so that this worker may claim them before the next heartbeat
        names those lists."""
        self.owner.suspects.add_lists(report.probation)

    def _sees_death(self) -> bool:
        """Return whether one of the peers on this host that this worker checks is dead."""
        here, checked = ProcessImage.current(), self._peers_checked()
        others = [*self._records.values(), self.owner.record]
        return any(judge(local_evidence(record, here, others, None)).dead for record in checked)

    def _peers_checked(self) -> list[OwnerRecord]:
        """Return the records of the ``PEERS_CHECKED`` owners that follow this one in the ring of
        all owners of this host, ordered by name. Right before each row of dead owners in the ring
        there is a living one, which checks the first of them; the pass then judges all owners of
        the host. So each death is found."""
        own_name, here = self.owner.name, ProcessImage.current()
        after = sorted(self.owner.host_peers, key=lambda owner: (owner < own_name, owner))
        # Each record is read once. A part of it changes (the pids of pool processes), but matters
        # only to a pass, which reads the record again.
        self._records = {owner: self._records[owner] for owner in after if owner in self._records}
        checked: list[OwnerRecord] = []
        for at in range(0, len(after), PEERS_CHECKED):
            names = after[at : at + PEERS_CHECKED]
            if new := [owner for owner in names if owner not in self._records]:
                self._records.update(self.reaper.registry.records(new))
            candidates = map(self._records.__getitem__, names)
            checked += [record for record in candidates if here.is_local_to(record.process)]
            if len(checked) >= PEERS_CHECKED:
                break
        return checked[:PEERS_CHECKED]

    def _stale_due(self, now: float) -> list[str]:
        """Return the stale owners (two heartbeats were missed), of any host, on which a verdict is
        due: at once, and again after each heartbeat interval."""
        interval = self.reaper.config.heartbeat_interval
        stale = self.owner.staleness.stale_owners(now, MISSED_HEARTBEATS * interval)
        self._next_judged = {owner: self._next_judged.get(owner, 0.0) for owner in stale}
        due = [owner for owner, due_at in self._next_judged.items() if now >= due_at]
        self._next_judged |= dict.fromkeys(due, now + interval)
        return due
