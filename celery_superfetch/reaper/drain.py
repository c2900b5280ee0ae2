"""Takes back the jobs of one dead owner: each goes to its queue, on probation, or to the dead set.

`Reaper` calls this after it has marked an owner as reaped: in a worker's maintenance thread and at
its start, in beat's reap task, and in the command `superfetch reap` (`superfetch drain` has a loop
of its own). If that process dies in the middle, the jobs that it has not moved yet are still in the
owner's private list. The mark stays, too, so the next pass of any reaper drains the rest. No job is
ever in two places: each moves in one script.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, TypeVar

from redis.exceptions import RedisError

from ..model import forks
from ..model.facts import HUNG, STOPPING, Facts
from ..model.job import Job, queue_list_of
from ..model.strikes import Blame, Limits, Running
from ..store.counters import Notice, Outcome, StrikeCounters
from ..store.database import Database
from ..store.private_lists import PrivateLists
from .recovery import decision_of, recoveries_of, report_outcome
from .report import Report

#: Jobs, and bytes, that one script reads or moves: while it runs, the server answers no other
#: client.
BATCH, ROOM = 50, 256 * 1024
TITLES_MAX = 10  # jobs that a pass names of each owner

T = TypeVar("T")

#: Something that takes long, in steps of one batch: between two steps its caller may do other work.
Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Take all steps that are left, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


@dataclass
class Death:
    """One dead owner while its jobs are taken back."""

    facts: Facts  #: its owner record
    reason: str  #: why it is dead; each job's history gets it
    report: Report  #: of the pass; it counts what is done
    running: Running  #: the jobs that it ran, and how it ended
    titles: list[str] = field(default_factory=list)  #: of the first few jobs
    #: Digests of jobs that have had the strike, or stop, of this death. Copies of one message share
    #: a history: struck twice by one death, a job would have lost two thirds of its life.
    struck: set[str] = field(default_factory=set)


class OwnerDrain:
    """The recovery of the jobs of dead owners.

    Arguments:
        limits: at how many strikes, stops or deaths a job is dead-lettered.
        notice: makes the failure notification of a dead-lettered job; None: no caller is told.
        sender: the Celery app, as the sender of signals.
    """

    def __init__(
        self, database: Database, limits: Limits, notice: Notice | None, sender: Any
    ) -> None:
        self.database = database
        self.lists = PrivateLists(database)
        self.strike_counters = StrikeCounters(database)
        self.limits = limits
        self.notice = notice
        self.sender = sender
        #: Owners whose jobs are being taken back here, by a pass that is not at its end.
        self.owners: set[str] = set()

    def in_steps(self, facts: Facts, reason: str, report: Report) -> Steps[list[str]]:
        """Empty the lists of an owner that is marked as reaped, a batch of jobs in each step;
        return the titles of the first few jobs. What fails is in the report; the next pass tries
        again."""
        self.owners.add(facts.owner)
        try:
            self._return_landed(facts, report)
            held = self.lists.held(facts.owner)
            running = Running(
                held.running,
                excused=facts.was == HUNG,
                at_death=facts.ran,
                stopping=facts.was == STOPPING,
            )
            death = Death(facts, reason, report, running)
            claims = sorted(held.claims, key=queue_list_of)
            for queue_list, its_claims in groupby(claims, queue_list_of):
                with report.surviving(f"private list of {facts.owner} for {queue_list}"):
                    yield from self._drain_list(death, deque(its_claims))
            # If the dead process is only frozen, its blocking reads still wait on the server: one
            # may just have got a job that was returned to its queue.
            if held.claims:
                self._return_landed(facts, report)
            return death.titles
        finally:
            self.owners.discard(facts.owner)

    def _return_landed(self, facts: Facts, report: Report) -> None:
        """Return jobs that a blocking read has moved to the owner's landing lists, and that no
        claim has taken from there: they had not begun."""
        with report.surviving(f"what landed for {facts.owner}"):
            report.recovered += self.lists.unland(facts.owner, facts.lists)

    def _drain_list(self, death: Death, claims: deque[str]) -> Steps[None]:
        """Take back the jobs of one queue list, the newest first, each to the front of its queue:
        so they wait in the order in which they were claimed."""
        while claims:
            jobs, seen = self.lists.jobs(death.facts.owner, [*islice(claims, BATCH)], ROOM)
            for _ in range(seen):
                claims.popleft()
            if not jobs:
                continue
            with forks.kept_off():  # the app's tasks are asked for their limits
                outcomes = self._settle(death, jobs)
                for outcome in outcomes:
                    self._note(death, outcome)
            # Copies of one message share a history, so the second one is decided on again in the
            # next batch. If all jobs of a batch are to be decided on again, another reaper counts
            # them at this moment: they are left to the next pass.
            again = [result.recovery.job for result in outcomes if result.answer == b"recounted"]
            if len(again) < len(jobs):
                claims.extendleft(job.claim_id for job in reversed(again))
            yield

    def _settle(self, death: Death, jobs: list[Job]) -> list[Outcome]:
        """Decide on jobs of one queue list, and move them. If that fails, decide on each alone: a
        job on which no decision can be made delays no other."""
        facts = death.facts
        try:
            recoveries = recoveries_of(
                jobs,
                self.strike_counters,
                death.running,
                self.limits,
                death.struck,
                reason=death.reason,
                app_name=facts.app,
                node=facts.node,
            )
            decided = [(recovery, decision_of(recovery, self.sender)) for recovery in recoveries]
            expires = facts.lists.get(jobs[0].queue_list, 0)
            outcomes = self.strike_counters.carry_out(
                decided, expires, marked=True, notice=self.notice
            )
        except Exception as exc:
            if isinstance(exc, RedisError):
                self.database.server_time()  # raises if the server is away: no job is at fault
            if len(jobs) == 1:
                death.report.failed(f"job {jobs[0].title} of {facts.owner}", exc)
                return []
            return [outcome for job in jobs for outcome in self._settle(death, [job])]
        moved = [outcome.recovery for outcome in outcomes if outcome.answer == b"ok"]
        death.struck.update(one.digest for one in moved if one.blame is not Blame.NONE)
        return outcomes

    def _note(self, death: Death, outcome: Outcome) -> None:
        recovery, report = outcome.recovery, death.report
        if isinstance(outcome.answer, Exception):
            report.failed(f"job {recovery.title} of {recovery.job.owner}", outcome.answer)
        if outcome.answer != b"ok":
            return
        if len(death.titles) < TITLES_MAX:
            death.titles.append(recovery.title)
        if report_outcome(outcome, self.sender) is not None:
            report.killed += 1
            return
        report.recovered += 1
        if recovery.probation:
            report.probation.add(recovery.job.queue_list)
