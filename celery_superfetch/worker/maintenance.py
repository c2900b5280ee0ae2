"""Two threads of a worker's main process: one finds dead peers and takes back their jobs, the other
one moves scheduled jobs that are due to their queues.

``steps.Maintenance`` starts both. Each second the maintenance thread makes a round for each owner
of the process: it makes deferred calls, checks the processes of peers on this host, and takes some
steps of the reap passes that are under way. If the process dies in a pass, the next pass of any
reaper takes back the jobs that are left.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from functools import cache, partial
from time import monotonic, time

from celery import Celery
from celery.utils.log import get_logger
from redis.exceptions import OutOfMemoryError, RedisError

from ..app.reaper import reaper_of, scheduled_pass_in_steps
from ..model import forks
from ..model.facts import Facts
from ..model.job import claim_number
from ..model.log_text import one_line_each
from ..model.outage import Outage
from ..model.process import ProcessImage
from ..model.verdict import MISSED_HEARTBEATS, judge
from ..owner.owner import Owner
from ..owner.process_owners import owners_of_process
from ..reaper.drain import Steps
from ..reaper.evidence import local_evidence
from ..reaper.report import Report

logger = one_line_each(get_logger(__name__))

LOOK_INTERVAL = 1.0  # seconds between two looks at this host's processes, which cost no command

#: Number of peers on its host that each worker checks. One would be enough if all workers knew the
#: same peers and none could be frozen.
LOOKS = 4

#: Seconds of a round that passes may take, at least one step: a pass over 100,000 jobs takes many
#: rounds, and the other duties are due each second.
PASS_TURN = 0.25

#: Most passes that are under way at once. They advance by turns, so each may wait for all others.
PASSES = 8

#: Most jobs of one owner whose start time is in its record, those that run longest: 3 kB.
MOST_STARTED = 100


class MaintenanceThread(threading.Thread):
    """The thread that makes the rounds of all owners of this process."""

    def __init__(self, app: Celery) -> None:
        super().__init__(name="superfetch-maintenance", daemon=True)
        self.over = threading.Event()
        self._rounds = cache(partial(Rounds, app))
        #: Owner -> its outage: each owner may be on another server.
        self._outage_of = cache(lambda owner: Outage(logger))

    def run(self) -> None:
        forks.mark_thread()
        pause = LOOK_INTERVAL
        while not self.over.wait(pause):
            pause = LOOK_INTERVAL
            for owner in owners_of_process():
                if not owner.name:
                    continue
                outage: Outage = self._outage_of(owner)
                try:
                    with forks.kept_off():
                        rounds = self._rounds(owner)
                        owner.catch_up()
                    if outage.lasts:
                        # Most rounds send the server nothing, and succeed while it is away. If such
                        # a round ended the outage, the log would say so again and again.
                        rounds.reaper.database.server_time()
                    rounds.go(monotonic())
                    if rounds.passes:
                        pause = 0.0
                    outage.ended("Maintenance: the server answers")
                except (RedisError, OSError) as exc:
                    outage.failed(
                        "Maintenance cannot ask the server (%s). This worker finds no dead workers "
                        "until it can; it tries again every %g s.",
                        exc,
                        LOOK_INTERVAL,
                    )
                except Exception:  # without this thread the worker would reap no more
                    logger.exception(
                        "Maintenance failed and goes on. If it repeats, this worker finds no dead "
                        "ones: restart it, and report the error."
                    )


class ReleaseThread(threading.Thread):
    """The thread that moves scheduled jobs that are due to their queues, once a second. In the
    maintenance thread they would wait for a long pass, or for a slow receiver of a signal."""

    def __init__(self) -> None:
        super().__init__(name="superfetch-release", daemon=True)
        self.over = threading.Event()

    def run(self) -> None:
        forks.mark_thread()
        while not self.over.wait(LOOK_INTERVAL):
            for owner in owners_of_process():
                if not owner.name:
                    continue
                try:
                    owner.leases.release_due()
                except (RedisError, OSError) as exc:  # maintenance names it at WARNING
                    logger.debug("Scheduled jobs could not be released: %s.", exc)
                except Exception:
                    logger.exception(
                        "Scheduled jobs could not be released by this worker; it tries again in "
                        "%g s. If that repeats, they wait for other workers and for beat: restart "
                        "it, and report the error.",
                        LOOK_INTERVAL,
                    )


class Rounds:
    """The maintenance of one owner (this process in one database). A pass goes on over several
    rounds, for a moment in each."""

    def __init__(self, app: Celery, owner: Owner) -> None:
        self.owner = owner
        self.reaper = reaper_of(app, owner.client, owner)
        self._facts: dict[str, Facts] = {}
        self._next_pass = self._next_count = 0.0
        self._next_look: dict[str, float] = {}
        self.passes: deque[Steps[Report]] = deque()  # those under way, the next in turn first

    def go(self, now: float) -> None:
        """Make one round. Raises RedisError if the server cannot be asked: then no owner is
        declared dead."""
        self.note_runs()
        # All workers find a dead peer, or a stale owner, in the same second. A lock lets one of
        # them make the pass.
        if self._sees_death():  # others may have died with it
            self._reap(self.owner.neighbours, f"host:{ProcessImage.current().host}")
        if silent := self._due(now):
            self._reap(silent, "remote")
        if now >= self._next_pass:
            self._next_pass = now + self.reaper.config.reap_interval
            self._begin(scheduled_pass_in_steps(self.reaper, self.owner.facts.node))
        self._go_on(monotonic() + PASS_TURN)
        # Last: a server over its memory limit refuses the counts, which must not stop the rest.
        if now >= self._next_count and self.owner.runner.run_counts:
            self._next_count = now + self.reaper.config.heartbeat_interval
            with suppress(OutOfMemoryError):
                self.owner.runner.run_counts.count(self.reaper.database)

    def note_runs(self) -> None:
        """Note when those jobs started that have run for longer than a heartbeat interval; the next
        heartbeat writes it into the owner record."""
        config, worker = self.owner.config, self.owner.runner.worker
        if worker is None:  # a consumer of the same process has no pool
            return
        now, started = time(), list[tuple[int, int]]()
        for request in worker.superfetch_gate.running():
            at, delivery = request.time_start or now, request.delivery
            if delivery.owner is self.owner and now - at > config.heartbeat_interval:
                started.append((int(at), claim_number(delivery.job.claim_id)))
        # In a fixed order, so that it changes only with the jobs: the heartbeat sends only changes.
        oldest = heapq.nsmallest(MOST_STARTED, started)
        self.owner.started_jobs = tuple((number, at) for at, number in oldest)

    def _reap(self, owners: Collection[str], lock: str) -> None:
        if self.reaper.database.take_turn(lock, LOOK_INTERVAL / 2):
            self._begin(self.reaper.reap_in_steps(owners))

    def _begin(self, steps: Steps[Report]) -> None:
        """Add a pass, unless there are ``PASSES``: its jobs are left to a later pass."""
        if len(self.passes) < PASSES:
            self.passes.append(steps)

    def _go_on(self, until: float) -> None:
        """Take steps of the passes in turn, one at least, until some time (monotonic s)."""
        while self.passes:
            steps = self.passes.popleft()  # one that raises is over
            try:
                next(steps)
            except StopIteration as end:
                self.note(end.value)
            else:
                self.passes.append(steps)
            if monotonic() >= until:
                return

    def note(self, report: Report) -> None:
        """Note on which queue lists a pass has put suspects (jobs on probation), so that this
        worker may claim them before the next heartbeat names those lists."""
        self.owner.suspects.add_lists(report.probation)

    def _sees_death(self) -> bool:
        """Return whether one of the peers on this host that this worker checks is dead."""
        here, watched = ProcessImage.current(), self._watched()
        others = [*self._facts.values(), self.owner.facts]
        return any(judge(local_evidence(facts, here, others, None)).dead for facts in watched)

    def _watched(self) -> list[Facts]:
        """Return the records of the ``LOOKS`` owners that follow this one, by name and in a ring of
        all owners of this host. A living owner comes right before each row of dead ones and checks
        the first of them, so each death is found."""
        own, here = self.owner.name, ProcessImage.current()
        after = sorted(self.owner.neighbours, key=lambda owner: (owner < own, owner))
        # Each record is read once: what changes in it (the pool's pids) matters only to a pass,
        # which reads it again.
        self._facts = {owner: self._facts[owner] for owner in after if owner in self._facts}
        watched: list[Facts] = []
        for at in range(0, len(after), LOOKS):
            names = after[at : at + LOOKS]
            if new := [owner for owner in names if owner not in self._facts]:
                self._facts.update(self.reaper.registry.facts(new))
            candidates = map(self._facts.__getitem__, names)
            watched += [facts for facts in candidates if here.same_ground(facts.process)]
            if len(watched) >= LOOKS:
                break
        return watched[:LOOKS]

    def _due(self, now: float) -> list[str]:
        """Return the stale owners (two heartbeats were missed) on which a verdict is due: at once,
        and again after each heartbeat interval."""
        interval = self.reaper.config.heartbeat_interval
        silent = self.owner.silence.silent(now, MISSED_HEARTBEATS * interval)
        self._next_look = {owner: self._next_look.get(owner, 0.0) for owner in silent}
        due = [owner for owner, look in self._next_look.items() if now >= look]
        self._next_look |= dict.fromkeys(due, now + interval)
        return due
