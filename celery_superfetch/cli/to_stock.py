"""Gives everything in flight back to the public queues, so that stock kombu can go on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import StillInUse
from ..model.facts import Facts
from ..model.verdict import Reason
from ..reaper.drain import BATCH
from ..reaper.drain import Report as Pass
from ..reaper.reaper import TOMBSTONE, Reaper
from ..store.probation import Suspects
from ..store.wire.clients import run_id

logger = logging.getLogger(__name__)

#: What the registry keeps as the reason where an operator overrules the verdict.
FORCED = "drained by an operator"

#: Tries to mark an owner that goes on writing heartbeats: each must hit the gap between two.
TRIES = 10


@dataclass
class Alive:
    """An owner that is not dead, or not yet known to be."""

    owner: str
    host: str
    pid: int
    in_flight: int
    #: Seconds since its last heartbeat, by the server's clock.
    heartbeat_age: float
    reason: str


@dataclass
class GivenBack:
    """What one drain found and did."""

    #: Owners that were marked reaped -> why.
    owners: dict[str, str] = field(default_factory=dict)
    #: Owners that live: with ``force`` they were drained all the same.
    alive: list[Alive] = field(default_factory=list)
    given_back: int = 0
    #: Queue list -> jobs that went there.
    queues: Counter[str] = field(default_factory=Counter)
    #: Jobs that are still in private lists.
    in_flight: int = 0
    #: Jobs of the dead set: they stay there.
    dead_set: int = 0
    #: Other keys of ours that are left, and those that were deleted.
    keys: int = 0
    deleted: int = 0
    errors: int = 0
    dry_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "queues": dict(self.queues)}


class GiveBack:
    """One drain of the whole database; holds no loop and no thread.

    What it gives back is requeued: in order, to the front of the queue it came from, and not
    counted against the job.
    """

    def __init__(self, reaper: Reaper) -> None:
        self.reaper = reaper
        self.registry = reaper.registry
        self.lists = reaper.lists

    def run(self, *, force: bool = False, dry_run: bool = False) -> GivenBack:
        """Give back what dead owners hold, if no owner lives.

        Arguments:
            force: mark the living reaped, too. They learn it by their next heartbeat.
            dry_run: count, change nothing.

        Raises:
            StillInUse: an owner lives and ``force`` is not set.
            redis.exceptions.RedisError: the registry could not be read.
        """
        report, errors = GivenBack(dry_run=dry_run), Pass(dry_run=dry_run)
        self.reaper.sweep(errors)
        judged = self.reaper.jury.judge_all(keep=not dry_run)
        report.alive = self._alive(judged)
        if report.alive and not force and not dry_run:
            raise StillInUse(_refusal(report.alive))
        for facts, score, verdict in judged:
            if verdict.dead or force:
                self._mark(facts, score, verdict, report)
        # Every owner that is marked reaped: now, or before.
        names = dict.fromkeys([*report.owners, *self.registry.tombstones()])
        for owner, facts in self.registry.facts(names).items():
            for queue_list, expires in facts.lists.items():
                with errors.surviving(f"private list of {owner} for {queue_list}"):
                    self._empty(owner, queue_list, expires, report)
        with errors.surviving("the jobs on probation"):
            self._end_probation(report)
        with errors.surviving("what is left"):  # SCAN may be forbidden; what went back went back
            self._look_around(report)
        report.given_back = sum(report.queues.values())
        report.errors += errors.errors
        return report

    def _alive(self, judged: list[tuple[Facts, int, Reason]]) -> list[Alive]:
        living = [(f, score, v) for f, score, v in judged if not v.dead]
        sizes = self.lists.sizes([(facts.owner, facts.lists) for facts, _, _ in living])
        now = self.reaper.database.server_time()
        return [
            Alive(
                owner=facts.owner,
                host=facts.process.host,
                pid=facts.process.pid,
                in_flight=sizes.get(facts.owner, 0),
                heartbeat_age=max(0, now - score) / 1000,
                reason=verdict.value,
            )
            for facts, score, verdict in living
        ]

    def _mark(self, facts: Facts, score: int, verdict: Reason, report: GivenBack) -> None:
        owner, host = facts.owner, facts.process.host
        reason = verdict.value if verdict.dead else FORCED
        if not report.dry_run:
            for _ in range(TRIES):
                if self.registry.mark(owner, host, score, TOMBSTONE, reason):
                    break
                # Heard since: what was dead is not, and what is forced is asked again.
                now = self.registry.owners().get(owner)
                if verdict.dead or now is None:
                    return
                score = now
            else:
                report.errors += 1
                logger.error("drain: %s is heard too often to be marked reaped: stop it.", owner)
                return
            self.registry.cut(facts)
        report.owners[owner] = reason

    def _empty(self, owner: str, queue_list: str, expires: int, report: GivenBack) -> None:
        """Newest first, each to the front of the queue: the old order is the new one."""
        if report.dry_run:
            size = self.lists.sizes([(owner, [queue_list])])[owner]
            report.queues.update({queue_list: size} if size else {})
            return
        self.lists.unhold_all(owner, queue_list)
        while jobs := self.lists.in_flight(owner, queue_list, BATCH):
            report.queues[queue_list] += self.lists.give_back(jobs, expires)

    def _end_probation(self, report: GivenBack) -> None:
        """Suspects go to the front of their queue; nothing runs alone without us."""
        suspects = Suspects(self.reaper.database)
        for queue_list in sorted(suspects.lists()):
            act = suspects.size if report.dry_run else suspects.give_back
            report.queues[queue_list] += act(queue_list)

    # -- what is left

    def _look_around(self, report: GivenBack) -> Sequence[bytes]:
        """Count what is left; returns the keys that are neither jobs' nor the dead set's."""
        report.in_flight, doomed = self.reaper.keyspace.left()
        report.dead_set, report.keys = self.reaper.dead_jobs.size(), len(doomed)
        return doomed

    def forget(self, report: GivenBack) -> None:
        """Delete our bookkeeping; never a private list, and never the dead set.

        Raises:
            StillInUse: jobs are in flight, or a claim could still land; nothing was deleted.
        """
        doomed = self._look_around(report)
        self._check_over(report)
        report.deleted += self.reaper.keyspace.delete(doomed)
        report.keys = 0

    def _check_over(self, report: GivenBack) -> None:
        if report.in_flight:
            raise StillInUse(
                f"nothing was forgotten: {report.in_flight} jobs are still in private lists"
            )
        if owners := self.registry.owners():
            raise StillInUse(f"nothing was forgotten: {', '.join(owners)} is registered; stop it")
        tombstones = self.registry.tombstones()
        now, run = self.reaper.database.server_time(), run_id(self.registry.client)
        for owner, facts in self.registry.facts(tombstones).items():
            seconds = (tombstones[owner] - now) / 1000
            # Its blocking read may still claim, unless the server has none of its connections.
            if seconds > 0 and self.registry.connected(facts, run) is not False:
                raise StillInUse(
                    f"nothing was forgotten: a claim of {owner} may still land. Drain again in "
                    f"{seconds:.0f} s"
                )


def _refusal(alive: list[Alive]) -> str:
    rows = "".join(
        f"\n  {one.owner}: {one.in_flight} jobs in flight, last heartbeat "
        f"{one.heartbeat_age:.0f} s ago; {_advice(one)}"
        for one in alive
    )
    return (
        f"nothing was moved. Owners that are alive, or not yet known to be dead:{rows}\n"
        "Stop these workers by TERM, wait until they have ended (--wait SECONDS waits for it), "
        "and drain again. --force takes their jobs all the same; what a living worker runs then "
        "runs twice, and it claims again until it is stopped"
    )


def _advice(one: Alive) -> str:
    if one.reason in (Reason.RUNNING.value, Reason.RUNNING_SILENT.value):
        return f"{one.reason}: kill -TERM {one.pid}"
    return f"pid {one.pid} on {one.host}; if it is gone, drain again until its silence is known"
