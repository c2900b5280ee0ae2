"""Empties the private lists of an owner that was reaped."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.exceptions import RedisError

from ..model import forks
from ..model.dead_job import DeadJob
from ..model.facts import Facts
from ..model.job import Job, digest
from ..model.strikes import Limits, Running
from ..model.verdict import Reason
from ..signals import job_killed
from ..store.counters import Outcome
from ..store.database import Database
from ..store.private_lists import PrivateLists
from .judge import Judge, ask, tell

logger = logging.getLogger(__name__)

#: Jobs, and bytes, that one script looks at or moves: it keeps everybody else waiting.
BATCH, ROOM = 50, 256 * 1024
NAMED = 10  # jobs that a pass names of each owner


@dataclass
class Report:
    """What one pass found and did."""

    owners: int = 0
    lists: set[str] = field(default_factory=set)  # the queue lists that they serve
    dead: dict[str, Reason] = field(default_factory=dict)  # dead owners -> why
    recovered: int = 0
    probation: set[str] = field(default_factory=set)  # queue lists whose suspects went on probation
    killed: int = 0
    adopted: int = 0  # owners or lists that nobody had registered and the full sweep found
    errors: int = 0
    seconds: float = 0.0
    dry_run: bool = False
    ran: bool = True  # False: another pass holds the lock of this scope; nothing was looked at

    @property
    def did_something(self) -> bool:
        return bool(self.dead or self.recovered or self.killed or self.adopted or self.errors)

    def failed(self, what: str, exc: Exception) -> None:
        """Note an error that the pass survives."""
        self.errors += 1
        known = isinstance(exc, RedisError)
        logger.error(
            "reap: %s: %s. It was left as it is, nothing was lost; the next pass tries again.",
            what,
            exc if known else repr(exc),
            exc_info=None if known else exc,
        )

    @contextmanager
    def surviving(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as exc:  # of Redis, of one job, or of an app's code: others wait
            self.failed(what, exc)

    def __str__(self) -> str:
        if not self.ran:
            return "another pass had its turn"
        verb = "would recover" if self.dry_run else "recovered"
        reasons = "; ".join(f"{owner}: {reason.value}" for owner, reason in self.dead.items())
        return (
            f"reap: {len(self.dead)} of {self.owners} owners dead, {verb} {self.recovered} jobs, "
            f"killed {self.killed}, adopted {self.adopted}, errors {self.errors}, "
            f"{self.seconds:.3f} s" + (f" ({reasons})" if reasons else "")
        )


class Announcements(Protocol):
    """Whoever tells the callers of killed jobs. No pass waits for a result backend."""

    def soon(self, job: DeadJob) -> None: ...  # it was killed now; its ``job_killed`` is included

    def look(self) -> None: ...  # for those that others left

    def after_pass(self) -> None: ...


class Drain:
    """Recovers or kills the jobs of reaped owners, a batch at a time."""

    def __init__(
        self, database: Database, sender: Any, announcements: Announcements | None, limits: Limits
    ) -> None:
        self.lists = PrivateLists(database)
        self.judge = Judge(database)
        self.sender = sender
        self.announcements = announcements
        self.limits = limits
        self._titles: list[str] = []  # the first few of the jobs that the last owner lost

    def drain(self, facts: Facts, reason: str, report: Report) -> list[str]:
        """Empty the lists of an owner that is marked reaped; titles of the first few jobs."""
        self._titles = []
        there = self.lists.has_jobs((facts.owner, [name]) for name in facts.lists)
        for (queue_list, expires), is_filled in zip(facts.lists.items(), there, strict=True):
            if is_filled:
                with report.surviving(f"private list of {facts.owner} for {queue_list}"):
                    self._drain_list(facts, queue_list, expires, reason, report)
        return self._titles

    def _drain_list(
        self, facts: Facts, queue_list: str, expires: int, reason: str, report: Report
    ) -> None:
        """Newest first, each to the front of the queue: the old order is the new one."""
        owner = facts.owner
        told = {"reason": reason, "app_name": facts.app, "node": facts.node}
        self.lists.unhold_all(owner, queue_list)
        running = None
        while payloads := self.lists.newest(owner, queue_list, BATCH, ROOM):
            running = running or self.lists.running(owner, stopping=facts.was == "stopping")
            # What a connection claimed again that outlived its process did not run: the strike goes
            # with the claim that did.
            ids = running.claim_ids
            jobs = [Job(owner, queue_list, raw, ids.get(digest(raw), "")) for raw in payloads]
            with forks.kept_off():  # the app's tasks are asked for their limits
                outcomes = self._settle(jobs, running, expires, told, report)
                left = [self._note(outcome, report) for outcome in outcomes]
            if not any(left):  # the next pass tries again
                return
            # Who has been blamed is not blamed again for a copy that was claimed late.
            if any(job.claim_id for job in jobs):
                running = None

    def _settle(
        self, jobs: list[Job], running: Running, expires: int, told: dict[str, str], report: Report
    ) -> list[Outcome]:
        """Decide on jobs and carry that out; one that cannot be decided on holds up no other."""
        try:
            found = self.judge.look(jobs, running, self.limits, **told)
            decided = [(recovery, ask(recovery, self.sender)) for recovery in found]
            return self.judge.carry_out(decided, expires, marked=True)
        except RedisError:
            raise
        except Exception as exc:
            if len(jobs) == 1:
                report.failed(f"job {jobs[0].title} of {jobs[0].owner}", exc)
                return []
            alone = (self._settle([job], running, expires, told, report) for job in jobs)
            return [outcome for outcomes in alone for outcome in outcomes]

    def _note(self, outcome: Outcome, report: Report) -> bool:
        """Note what became of one job; True when it left the private list."""
        recovery, answer = outcome.recovery, outcome.answer
        if isinstance(answer, Exception):
            report.failed(f"job {recovery.title} of {recovery.job.owner}", answer)
        if answer != b"ok":
            return answer == b"moved"
        dead = tell(outcome, self.sender)
        if len(self._titles) < NAMED:
            self._titles.append(recovery.title)
        if dead is None:
            report.recovered += 1
            if recovery.probation:
                report.probation.add(recovery.job.queue_list)
            return True
        report.killed += 1
        if self.announcements is not None:
            self.announcements.soon(dead)
        else:
            job_killed.send(sender=self.sender, job=dead)
        return True
