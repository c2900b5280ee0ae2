"""Requeues the jobs in flight, on probation and scheduled, so that stock kombu can go on.

`superfetch rollback` (``cli/stock.py``) calls ``Rollback.run``, with `--wait` again and again until
no worker lives: once a second, or twice in each heartbeat interval if that is more often. An owner
is marked reaped before its jobs are moved, and each job moves by one script or one LMOVE. If the
process dies, each job is in one place, and a job that did not move stays there until `rollback` is
called again, or a worker of this package reaps.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ..errors import StillInUse
from ..model.arguments import printable
from ..model.humanize import number
from ..model.job import queue_list_of
from ..model.log_text import one_line_each
from ..model.owner_record import OwnerRecord
from ..model.staleness import watch_time
from ..model.verdict import Reason
from ..reaper.drain import DRAIN_BATCH, DRAIN_MAX_BYTES
from ..reaper.evidence import Onlooker
from ..reaper.reaper import TOMBSTONE_S, Reaper
from ..reaper.report import Report as Pass
from ..store.batches import batches
from ..store.in_flight_jobs import InFlightJobs
from ..store.parked_jobs import ParkedJobs
from ..store.paused_queues import PausedQueues
from ..store.private_lists import PrivateLists
from ..store.queues import Suspects

logger = one_line_each(logging.getLogger(__name__))

WORKERS_NAMED = 20  # workers that a refusal names


@dataclass
class RolledBack:
    """The outcome of one rollback; its fields are those of ``--json``."""

    owners: dict[str, str] = field(default_factory=dict)  # marked reaped -> why
    #: Rows of owners that are not known to be dead; with ``force`` their jobs are requeued
    #: nevertheless.
    alive: list[dict[str, Any]] = field(default_factory=list)
    requeued: int = 0
    queues: Counter[str] = field(default_factory=Counter)  # queue list -> jobs that went there
    in_flight: int = 0  # jobs that are still in private lists
    parked: int = 0  # jobs that still wait for their time
    probation: int = 0  # jobs that still wait to run alone
    dead_set: int = 0  # jobs that stay there
    paused: list[str] = field(default_factory=list)  # queues; stock workers do not know pauses
    keys: int = 0  # of this package that are left and hold no job
    #: Names of the rows of django-celery-beat that sent the reap task, and were removed.
    beat_rows: list[str] = field(default_factory=list)
    errors: int = 0
    dry_run: bool = False


class Errors(Pass):
    """The errors that a rollback survives. No pass comes after it if all workers are stopped."""

    by = "Rollback"
    again = "fix the error, and run the rollback again"


class Rollback:
    """One rollback: it requeues jobs in order, at the front of their queues, without a strike."""

    def __init__(self, reaper: Reaper, on_moved: Callable[[int], object] = lambda _: None) -> None:
        self.reaper = reaper
        self._on_moved = on_moved  # called after each batch, with the number of jobs moved so far
        self.moved = 0  # jobs that were requeued, in all calls of ``run``
        self.registry = reaper.registry
        self.lists = PrivateLists(reaper.database)
        self.onlooker = Onlooker(reaper.registry)  # watches owners over all calls of ``run``
        self._has_registered = False  # unknown owners have been looked for, or that has failed

    def run(self, *, force: bool = False, dry_run: bool = False) -> RolledBack:
        """Requeue the jobs of dead owners, on probation and scheduled.

        Arguments:
            force: mark living owners reaped as well; they learn it from their next heartbeat.
            dry_run: only count.

        Raises:
            StillInUse: an owner lives, or is not known to be dead.
        """
        report, errors = RolledBack(dry_run=dry_run), Errors()
        # Only before the first look. SCAN takes long in a large database: if it ran between two
        # looks, the watch would begin again with each, and find no worker of another host dead.
        if not dry_run and not self._has_registered:
            # Also after an error: where SCAN is forbidden, each look would log the same one.
            self._has_registered = True
            with errors.logging_errors("workers that are not registered"):
                self.reaper.register_unknown()
        judged = self.onlooker.judge_owners()
        report.alive = self._rows([judgement for judgement in judged if not judgement[2].dead])
        if report.alive and not force and not dry_run:
            raise StillInUse(_refusal(report.alive))
        for record, score, verdict in judged:
            if verdict.dead or force:
                self._mark(record, score, verdict, report)
        # Every owner that is marked reaped: now, or before.
        names = dict.fromkeys([*report.owners, *self.registry.tombstones()])
        for record in self.registry.records(names).values():
            with errors.logging_errors(f"private list (owner={record.owner})"):
                self._empty(record, report, errors)
        # Before the jobs on probation: beat may release scheduled jobs meanwhile, and puts a
        # suspect among them on probation. If probation were emptied first, it would stay there.
        with errors.logging_errors("the scheduled jobs"):
            parked = ParkedJobs(self.reaper.database)
            report.queues.update(
                parked.readable_sizes(parked.lists())
                if dry_run
                else parked.release_all(self._count_moved)
            )
        with errors.logging_errors("the jobs on probation"):
            self._end_probation(report, errors)
        report.paused = sorted(PausedQueues(self.reaper.database).all())
        # SCAN may be forbidden; the jobs have moved.
        with errors.logging_errors("the count of what is left"):
            self._count_rest(report)
        report.queues = +report.queues  # without the lists that got no job
        report.requeued = report.queues.total()
        report.errors += errors.errors
        return report

    def _rows(self, judged: Sequence[tuple[OwnerRecord, int, Reason]]) -> list[dict[str, Any]]:
        """Return owners with the fields by which an operator finds and stops them."""
        held = InFlightJobs(self.reaper.database).counts([record.owner for record, _, _ in judged])
        now = self.reaper.database.server_time()
        return [
            {
                **{name: getattr(record, name) for name in ("owner", "node", "owner_ttl")},
                **{name: getattr(record.process, name) for name in ("host", "pid")},
                "in_flight": held[record.owner].in_flight,
                "heartbeat_age": max(0, now - score) / 1000,
                "reason": verdict.value,
            }
            for record, score, verdict in judged
        ]

    def _mark(self, record: OwnerRecord, score: int, verdict: Reason, report: RolledBack) -> None:
        owner = record.owner
        reason = verdict.value if verdict.dead else "rolled back by an operator"
        if not verdict.dead:  # it may have sent a heartbeat since
            score = self.registry.last_heartbeat(owner) or 0
        if report.dry_run or self.registry.mark(record, score, TOMBSTONE_S, reason) is not None:
            report.owners[owner] = reason
        elif not verdict.dead and self.registry.last_heartbeat(owner) is not None:
            report.errors += 1
            logger.error(
                "Worker not rolled back (owner=%s): it has just sent a heartbeat, so its jobs in "
                "flight were not requeued. Stop it, and run the rollback again.",
                owner,
            )

    def _empty(self, record: OwnerRecord, report: RolledBack, errors: Errors) -> None:
        """Requeue an owner's jobs, the newest first, each to the front: the order stays. If the
        jobs of a queue list cannot move (its key is no list, say), those of the others do."""
        owner = record.owner
        if report.dry_run:
            report.queues.update(InFlightJobs(self.reaper.database).counts([owner])[owner].lists)
            return
        for queue_list, expires in record.lists.items():
            with errors.logging_errors(
                f"jobs that were just fetched (owner={owner}, queue={queue_list})"
            ):
                landed = self.lists.return_landed(owner, {queue_list: expires})
                self._count_requeued(queue_list, landed, report)
        claims = sorted(self.lists.held(owner).claims, key=queue_list_of)
        for queue_list, its_claims in groupby(claims, queue_list_of):
            with errors.logging_errors(f"private list (owner={owner}, queue={queue_list})"):
                self._empty_list(record, [*its_claims], report)

    def _empty_list(self, record: OwnerRecord, claims: Sequence[str], report: RolledBack) -> None:
        """Requeue the jobs of an owner's claims from one queue list."""
        while claims:
            jobs, read_count = self.lists.jobs(record.owner, claims[:DRAIN_BATCH], DRAIN_MAX_BYTES)
            claims = claims[read_count:]
            for some in batches(jobs, lambda job: job):
                name = some[0].queue_list
                requeued = self.lists.requeue_all(some, record.lists.get(name, 0))
                self._count_requeued(name, requeued, report)

    def _end_probation(self, report: RolledBack, errors: Errors) -> None:
        suspects = Suspects(self.reaper.database)
        for queue_list in sorted(suspects.lists()):
            with errors.logging_errors(f"the jobs on probation (queue={queue_list})"):
                if report.dry_run:
                    report.queues[queue_list] += suspects.size(queue_list)
                else:
                    self._count_requeued(queue_list, suspects.requeue(queue_list), report)

    def _count_requeued(self, queue_list: str, jobs: int, report: RolledBack) -> None:
        report.queues[queue_list] += jobs
        self._count_moved(jobs)

    def _count_moved(self, jobs: int) -> None:
        if jobs:
            self.moved += jobs
            self._on_moved(self.moved)

    def _count_rest(self, report: RolledBack) -> None:
        jobs, report.keys = self.reaper.keyspace.left()
        report.in_flight = jobs["private:"] + jobs["landing:"]
        report.parked, report.probation = jobs["parked:"], jobs["probation:"]
        report.dead_set = len(self.reaper.dead_set)


def _refusal(alive: list[dict[str, Any]]) -> str:
    here = (Reason.RUNNING.value, Reason.RUNNING_SILENT.value)
    rows = ""
    for row in alive[:WORKERS_NAMED]:
        jobs = number(row["in_flight"], "job")
        held = f"{{owner}}: {jobs} in flight, last heartbeat {{heartbeat_age:.0f}} s ago"
        advice = "pid {pid} on {host}; if it is gone, run the rollback with --wait {wait:.0f}"
        if row["reason"] in here:
            advice = "{reason}: kill -TERM {pid} (`ps -fp {pid}` shows what it is)"
        text = f"{held}; {advice}".format(**row, wait=watch_time(row["owner_ttl"]))
        rows += f"\n  {printable(text)}"
    if len(alive) > WORKERS_NAMED:
        others = number(len(alive) - WORKERS_NAMED, "more worker")
        rows += f"\n  and {others}: `rollback --dry-run --json` lists all"
    return (
        f"nothing was moved. Workers that are alive, or not yet known to be dead:{rows}\n"
        "Stop these workers with SIGTERM, wait until they have ended (--wait SECONDS does that), "
        "and run the rollback again. --force requeues their jobs nevertheless: those that run may "
        "run twice, and a living worker claims again until it is stopped"
    )
