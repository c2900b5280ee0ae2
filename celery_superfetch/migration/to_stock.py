"""Requeues the jobs in flight, on probation and scheduled, so that stock kombu can go on.

`superfetch drain` (``cli/stock.py``) calls ``Drain.run``, with `--wait` once a second until no
worker lives. An owner is marked reaped before its jobs are moved, and each job moves by one script.
If the process dies, each job is in one place, and a job that did not move stays there until `drain`
is called again, or a worker of this package reaps.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import StillInUse
from ..model.arguments import printable
from ..model.facts import Facts
from ..model.log_text import one_line_each
from ..model.silence import watch_time
from ..model.verdict import Reason
from ..model.words import number
from ..reaper.drain import BATCH, ROOM
from ..reaper.evidence import Onlooker
from ..reaper.reaper import TOMBSTONE, Reaper
from ..reaper.report import Report as Pass
from ..store.batches import batches
from ..store.holdings import Holdings
from ..store.parked import Parked
from ..store.private_lists import PrivateLists
from ..store.queues import Suspects

logger = one_line_each(logging.getLogger(__name__))

NAMED = 20  # workers that a refusal names


@dataclass
class Drained:
    """The outcome of one drain; its fields are those of ``--json``."""

    owners: dict[str, str] = field(default_factory=dict)  # marked reaped -> why
    #: Rows of owners that are not known to be dead; with ``force`` they are drained all the same.
    alive: list[dict[str, Any]] = field(default_factory=list)
    given_back: int = 0
    queues: Counter[str] = field(default_factory=Counter)  # queue list -> jobs that went there
    in_flight: int = 0  # jobs that are still in private lists
    parked: int = 0  # jobs that still wait for their time
    probation: int = 0  # jobs that still wait to run alone
    dead_set: int = 0  # jobs that stay there
    keys: int = 0  # of this package that are left and hold no job
    #: Names of the rows of django-celery-beat that sent the reap task, and were removed.
    beat_rows: list[str] = field(default_factory=list)
    errors: int = 0
    dry_run: bool = False


class Errors(Pass):
    """The errors that a drain survives. No pass comes after it if all workers are stopped."""

    by = "drain"
    again = "fix what it says, and drain again"


class Drain:
    """One drain: it requeues jobs in order, at the front of their queues, without a strike."""

    def __init__(self, reaper: Reaper, on_moved: Callable[[int], object] = lambda _: None) -> None:
        self.reaper = reaper
        self._on_moved = on_moved  # called after each batch, with the number of jobs moved so far
        self.moved = 0  # jobs that were requeued, in all calls of ``run``
        self.registry = reaper.registry
        self.lists = PrivateLists(reaper.database)
        self.onlooker = Onlooker(reaper.registry)  # watches owners over all calls of ``run``

    def run(self, *, force: bool = False, dry_run: bool = False) -> Drained:
        """Requeue the jobs of dead owners, on probation and scheduled.

        Arguments:
            force: mark living owners reaped as well; their next heartbeat tells them.
            dry_run: only count.

        Raises:
            StillInUse: an owner lives, or is not known to be dead.
        """
        report, errors = Drained(dry_run=dry_run), Errors()
        if not dry_run:
            with errors.surviving("owners that are not registered"):  # SCAN may be forbidden
                self.reaper.register_unknown()
        judged = self.onlooker.judge()
        report.alive = self._rows([judgement for judgement in judged if not judgement[2].dead])
        if report.alive and not force and not dry_run:
            raise StillInUse(_refusal(report.alive))
        for facts, score, verdict in judged:
            if verdict.dead or force:
                self._mark(facts, score, verdict, report)
        # Every owner that is marked reaped: now, or before.
        names = dict.fromkeys([*report.owners, *self.registry.tombstones()])
        for facts in self.registry.facts(names).values():
            with errors.surviving(f"private list of {facts.owner}"):
                self._empty(facts, report)
        with errors.surviving("the jobs on probation"):
            self._end_probation(report)
        with errors.surviving("the parked jobs"):
            parked = Parked(self.reaper.database)
            report.queues.update(
                parked.sizes(parked.lists()) if dry_run else parked.release_all(self._count_moved)
            )
        with errors.surviving("what is left"):  # SCAN may be forbidden; what went back went back
            self._count_rest(report)
        report.given_back = sum(report.queues.values())
        report.errors += errors.errors
        return report

    def _rows(self, judged: Sequence[tuple[Facts, int, Reason]]) -> list[dict[str, Any]]:
        """Return owners with the fields by which an operator finds and stops them."""
        held = Holdings(self.reaper.database).of([facts.owner for facts, _, _ in judged])
        now = self.reaper.database.server_time()
        return [
            {
                **{name: getattr(facts, name) for name in ("owner", "node", "owner_ttl")},
                **{name: getattr(facts.process, name) for name in ("host", "pid")},
                "in_flight": held[facts.owner].in_flight,
                "heartbeat_age": max(0, now - score) / 1000,
                "reason": verdict.value,
            }
            for facts, score, verdict in judged
        ]

    def _mark(self, facts: Facts, score: int, verdict: Reason, report: Drained) -> None:
        owner = facts.owner
        reason = verdict.value if verdict.dead else "drained by an operator"
        if not verdict.dead:  # it may have been heard since
            score = self.registry.last_heard(owner) or 0
        if report.dry_run or self.registry.mark(facts, score, TOMBSTONE, reason) is not None:
            report.owners[owner] = reason
        elif not verdict.dead and self.registry.last_heard(owner) is not None:
            report.errors += 1
            logger.error("drain: %s was heard just now: drain again, or stop it.", owner)

    def _empty(self, facts: Facts, report: Drained) -> None:
        """Newest first, each to the front of the queue: the old order is the new one."""
        owner = facts.owner
        if report.dry_run:
            report.queues.update(Holdings(self.reaper.database).of([owner])[owner].lists)
            return
        for queue_list, expires in facts.lists.items():
            if landed := self.lists.unland(owner, {queue_list: expires}):
                report.queues[queue_list] += landed
                self._count_moved(landed)
        claims = self.lists.held(owner).claims
        while claims:
            jobs, seen = self.lists.jobs(owner, claims[:BATCH], ROOM)
            claims = claims[seen:]
            for some in batches(jobs, lambda job: job):
                name = some[0].queue_list
                requeued = self.lists.requeue_all(some, facts.lists.get(name, 0))
                report.queues[name] += requeued
                self._count_moved(requeued)

    def _end_probation(self, report: Drained) -> None:
        suspects = Suspects(self.reaper.database)
        for queue_list in sorted(suspects.lists()):
            if report.dry_run:
                report.queues[queue_list] += suspects.size(queue_list)
                continue
            requeued = suspects.requeue(queue_list)
            report.queues[queue_list] += requeued
            self._count_moved(requeued)

    def _count_moved(self, jobs: int) -> None:
        if jobs:
            self.moved += jobs
            self._on_moved(self.moved)

    def _count_rest(self, report: Drained) -> None:
        jobs, report.keys = self.reaper.keyspace.left()
        report.in_flight = jobs["private:"] + jobs["landing:"]
        report.parked, report.probation = jobs["parked:"], jobs["probation:"]
        report.dead_set = len(self.reaper.dead_set)


def _refusal(alive: list[dict[str, Any]]) -> str:
    here = (Reason.RUNNING.value, Reason.RUNNING_SILENT.value)
    rows = ""
    for row in alive[:NAMED]:
        jobs = number(row["in_flight"], "job")
        held = f"{{owner}}: {jobs} in flight, last heartbeat {{heartbeat_age:.0f}} s ago"
        advice = "pid {pid} on {host}; if it is gone, drain with --wait {wait:.0f}"
        if row["reason"] in here:
            advice = "{reason}: kill -TERM {pid} (`ps -fp {pid}` says what it is)"
        text = f"{held}; {advice}".format(**row, wait=watch_time(row["owner_ttl"]))
        rows += f"\n  {printable(text)}"
    if len(alive) > NAMED:
        more = number(len(alive) - NAMED, "more worker")
        rows += f"\n  and {more}: `drain --dry-run --json` names all"
    return (
        f"nothing was moved. Workers that are alive, or not yet known to be dead:{rows}\n"
        "Stop these workers by TERM, wait until they have ended (--wait SECONDS waits for it), "
        "and drain again. --force takes their jobs all the same; what a living worker runs then "
        "runs twice, and it claims again until it is stopped"
    )
