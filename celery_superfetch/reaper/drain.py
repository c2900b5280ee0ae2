"""Empties the private list of one dead owner: the jobs in Redis that this process had claimed.

Each job returns to its queue; or goes on probation, where it waits to run with no other job in its
worker; or goes to the dead set, which keeps jobs that have used up their strikes. A job gets a
strike if the owner died while the job ran.

``Reaper`` calls this after it has marked an owner as reaped, which is before any job moves: when a
worker starts and then in its maintenance thread, in beat's reap task, and in the command
`superfetch reap`. (`superfetch rollback` has a loop of its own, in ``migration/to_stock.py``.)

If the reaping process dies in the middle, the jobs that it has not moved are still in the owner's
private list, and the mark makes the next pass of any reaper continue. Each job moves in one script,
so none is ever in two places. Three things are lost with the process: the log lines and signals of
the batch that was being moved, the numbers of this pass, and ``Death.struck``, so that another copy
of a message may get a second strike for the same death.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import Any, TypeVar

from redis.exceptions import RedisError

from ..model import fork_gate
from ..model.job import Job, queue_list_of
from ..model.owner_record import HUNG, STOPPING, OwnerRecord
from ..model.strikes import Blame, Decision, Limits, Recovery, Running, decide
from ..store.database import Database
from ..store.private_lists import PrivateLists
from ..store.redis.server import is_server_or_memory_error
from ..store.strike_counters import Notice, Outcome, StrikeCounters
from .recovery import Rules, decision_of, log_failed_rules, recoveries_of, report_outcome
from .report import Report

#: Most jobs, and most bytes, that one script reads or moves. Both are small, since the server
#: answers no other client while a script runs.
DRAIN_BATCH, DRAIN_MAX_BYTES = 50, 256 * 1024
TITLES_MAX = 10  # jobs that a pass names of each owner

T = TypeVar("T")

#: A generator that does long work, one batch at each ``next``; its caller may do other work in
#: between. It returns the result.
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
    """One dead owner while its private list is emptied."""

    record: OwnerRecord  #: its owner record
    reason: str  #: why it is dead; each job's history gets it
    report: Report  #: of the pass; it counts the jobs that were moved
    #: Which of its claimed jobs had started, and how the owner ended (killed, hung or stopping).
    running: Running
    titles: list[str] = field(default_factory=list)  #: of the first few jobs
    #: Digests of the jobs that were blamed for this death: by a strike; or, if the worker was
    #: stopping, by a stop, which is counted apart. Copies of one message share a history: without
    #: this set one death would count once for each copy, and two copies would get two strikes.
    struck: set[str] = field(default_factory=set)


class OwnerDrain:
    """The recovery of the jobs of dead owners.

    Arguments:
        limits: numbers at which a job is dead-lettered (moved to the dead set): of its strikes, of
            its stops, and of deaths of its owner while it ran alongside other jobs.
        notice: makes the failure notification of a dead-lettered job: the message of a job that
            informs the publisher. None: no publisher is informed.
        sender: the Celery app, as the sender of signals.
    """

    def __init__(
        self, database: Database, limits: Limits, notice: Notice | None, sender: Any
    ) -> None:
        self.database = database
        self.lists = PrivateLists(database)
        self.strike_counters = StrikeCounters(database)
        #: They call code of the user: the limits of the app's tasks, receivers of signals.
        self._rules = Rules(limits, partial(decision_of, sender=sender), notice)
        #: They call none.
        self._plain_rules = Rules(Limits.of(database.config), self._decide, None)
        self.sender = sender
        #: Owners that a pass of this process is draining at the moment. Another pass of the process
        #: leaves them alone (``Reaper._drain_tombstones``).
        self.owners: set[str] = set()

    def in_steps(self, record: OwnerRecord, reason: str, report: Report) -> Steps[list[str]]:
        """Empty the lists of an owner that is marked as reaped, a batch of jobs in each step;
        return the titles of the first few jobs. An error is counted in the report; the next pass
        tries the job again."""
        self.owners.add(record.owner)
        try:
            self._return_landed(record, report)
            held = self.lists.held(record.owner)
            running = Running(
                held.running,
                # That may be the fault of a result backend.
                not_blamed=record.state_before_reap == HUNG,
                at_death=record.ran_at_reap,
                stopping=record.state_before_reap == STOPPING,
            )
            death = Death(record, reason, report, running)
            claims = sorted(held.claims, key=queue_list_of)
            for queue_list, its_claims in groupby(claims, queue_list_of):
                with report.logging_errors(
                    f"private list (owner={record.owner}, queue={queue_list})"
                ):
                    yield from self._drain_list(death, deque(its_claims))
            # If the dead process is only frozen, its blocking reads (BLMOVE) still wait on the
            # server. One may have taken a job that was just returned to its queue.
            if held.claims:
                self._return_landed(record, report)
            return death.titles
        finally:
            self.owners.discard(record.owner)

    def _return_landed(self, record: OwnerRecord, report: Report) -> None:
        """Return to their queues the jobs that a blocking read has moved to the owner's landing
        lists (one for each queue list), and that no claim has moved on from there: none of them has
        started."""
        with report.logging_errors(f"jobs that were just fetched (owner={record.owner})"):
            report.recovered += self.lists.return_landed(record.owner, record.lists)

    def _drain_list(self, death: Death, claims: deque[str]) -> Steps[None]:
        """Recover the jobs of one queue list. ``claims`` has the newest first, and each job goes to
        the front of its queue, so they wait there in the order in which they were claimed."""
        while claims:
            jobs, read_count = self.lists.jobs(
                death.record.owner, [*islice(claims, DRAIN_BATCH)], DRAIN_MAX_BYTES
            )
            for _ in range(read_count):
                claims.popleft()
            if not jobs:
                continue
            # The limits come from the app's tasks, and receivers of signals run: code of the user,
            # which may hold a lock that a child forked at this moment would inherit locked.
            with fork_gate.kept_off():
                outcomes = self._settle(death, jobs)
                for outcome in outcomes:
                    self._report(death, outcome)
            # The script answers "recounted" and leaves a job in place if the job's history has
            # changed since the decision. For a second copy of a message in this batch the first
            # copy has changed it: the next batch decides on the second one again. If the script
            # gives this answer for the whole batch, another reaper changes the histories at this
            # moment: the jobs are left to the next pass.
            again = [result.recovery.job for result in outcomes if result.answer == b"recounted"]
            if len(again) < len(jobs):
                claims.extendleft(job.claim_id for job in reversed(again))
            yield

    def _settle(self, death: Death, jobs: list[Job]) -> list[Outcome]:
        """Decide on jobs of one queue list, and move them. If that fails, decide on each job alone,
        so that a job on which no decision can be made delays no other; and then without code of the
        user, so that no job stays in the private list for ever."""
        owner = death.record.owner
        try:
            return self._move(death, jobs, self._rules)
        except Exception as exc:
            if isinstance(exc, RedisError):
                # Ask anything. If this raises, too, the server is away, and no job is at fault.
                self.database.server_time()
            if len(jobs) > 1:
                return [outcome for job in jobs for outcome in self._settle(death, [job])]
            if is_server_or_memory_error(exc):
                death.report.failed(f"job {jobs[0].title} (owner={owner})", exc)
                return []
            log_failed_rules(jobs[0], exc)
            death.report.errors += 1
        try:
            return self._move(death, jobs, self._plain_rules)
        except Exception as exc:
            death.report.failed(f"job {jobs[0].title} (owner={owner})", exc)
            return []

    def _move(self, death: Death, jobs: list[Job], rules: Rules) -> list[Outcome]:
        """Decide on jobs of one queue list by ``rules``, and move them."""
        record = death.record
        recoveries = recoveries_of(
            jobs,
            self.strike_counters,
            death.running,
            rules.limits,
            death.struck,
            reason=death.reason,
            app_name=record.app,
            node=record.node,
        )
        decided = [(recovery, rules.decide(recovery)) for recovery in recoveries]
        expires = record.lists.get(jobs[0].queue_list, 0)
        outcomes = self.strike_counters.carry_out(
            decided, expires, marked=True, notice=rules.notice
        )
        moved = [outcome.recovery for outcome in outcomes if outcome.answer == b"ok"]
        death.struck.update(
            recovery.digest for recovery in moved if recovery.blame is not Blame.NONE
        )
        return outcomes

    def _decide(self, recovery: Recovery) -> Decision:
        """Decide on a job without code of the user. A job of another app is recovered."""
        is_own = recovery.app_name == self.database.config.app_name
        return decide(recovery) if is_own or not recovery.parsed else Decision.RECOVER

    def _report(self, death: Death, outcome: Outcome) -> None:
        recovery, report = outcome.recovery, death.report
        if isinstance(outcome.answer, Exception):
            report.failed(f"job {recovery.title} (owner={recovery.job.owner})", outcome.answer)
        if outcome.answer != b"ok":
            return
        if len(death.titles) < TITLES_MAX:
            death.titles.append(recovery.title)
        if report_outcome(outcome, self.sender) is not None:  # a dead job
            report.killed += 1
            return
        report.recovered += 1
        if recovery.solo_runs:
            report.probation.add(recovery.job.queue_list)
