"""The reaper: one pass that finds dead owners and gives their jobs back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Generator
from itertools import groupby, islice
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import RedisError

from ..model import forks
from ..model.facts import HUNG, SCHEMA, STOPPING, Facts
from ..model.job import Job, queue_list_of
from ..model.log_text import one_line_each
from ..model.silence import Silence, watch_time
from ..model.strikes import Blame, Limits, Running
from ..model.verdict import Reason
from ..model.words import command
from ..signals import ReapedOwner, owner_reaped
from ..store.counters import Notice, Outcome
from ..store.database import Database, Structure
from ..store.dead_set import DeadSet
from ..store.history import MOST, History
from ..store.holdings import Holdings
from ..store.keyspace import Keyspace
from ..store.private_lists import PrivateLists
from ..store.registry import Registry
from ..store.wire.server import warn_once
from .evidence import judge_all
from .judge import Judge, ask, tell
from .report import Report
from .trimming import trim

logger = one_line_each(logging.getLogger(__name__))

TOMBSTONE = 60.0  # seconds its lists are drained again: the frozen may wait in a blocking claim

#: Jobs, and bytes, that one script looks at or moves: it keeps everybody else waiting.
BATCH, ROOM = 50, 256 * 1024
NAMED = 10  # jobs that a pass names of each owner

T = TypeVar("T")

#: Something that takes long, in steps of one batch: between two steps its caller may do other work.
Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Take all steps that are left; return what they lead to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Reaper(Structure):
    """Finds dead owners and empties their private lists; has no loop and no thread. Without a
    ``silence`` nobody is taken for dead by silence; without a ``notice`` no caller of a killed job
    is told. ``sender``: the Celery app."""

    def __init__(
        self,
        database: Database,
        *,
        silence: Silence | None = None,
        sender: Any = None,
        notice: Notice | None = None,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(database)
        self.registry = Registry(database)
        self.keyspace = Keyspace(database)
        self.dead_set = DeadSet(database)
        self.lists = PrivateLists(database)
        self.judge = Judge(database)
        self.limits = limits or Limits.of(self.config)
        self.history = History(database)
        self.notice = notice
        self.sender = sender
        self.silence = silence
        #: That are not in the history yet: a server over its memory limit takes them later.
        self.deaths: deque[tuple[float, dict[str, Any]]] = deque(maxlen=MOST)
        self._next_housekeeping = 0.0
        self._draining: set[str] = set()  # owners that a pass of this reaper is at

    def reap(self, only: Collection[str] | None = None, *, dry_run: bool = False) -> Report:
        """One pass; raises only where the registry cannot be read at all. ``only``: some owners,
        else all; ``dry_run``: change nothing."""
        return finish(self.reap_in_steps(only, dry_run=dry_run))

    def reap_in_steps(
        self, only: Collection[str] | None = None, *, dry_run: bool = False
    ) -> Steps[Report]:
        """Make one pass, as ``reap``, a batch of jobs in each step. If it is not finished, the next
        pass of another reaper drains what is left, since its owner is marked."""
        started, report = monotonic(), Report(dry_run=dry_run)
        verdicts = judge_all(self.registry, self.silence, only, report.surviving)
        report.owners = len(verdicts)
        report.lists.update(*(facts.lists for facts, _, _ in verdicts))
        for facts, score, verdict in verdicts:
            _check_schema(facts)
            if verdict.dead:
                with report.surviving(f"owner {facts.owner}"):
                    if death := (yield from self._reap_owner(facts, score, verdict, report)):
                        self.deaths.append((monotonic(), death))
        if self.deaths:
            with report.surviving("the history of deaths"):
                self.history.died(self.deaths)
                self.deaths.clear()
        if not dry_run and only is None:
            yield from self._drain_tombstones(report)
            if started >= self._next_housekeeping:  # an idle fleet need not do that at each pass
                self._next_housekeeping = started + 6 * self.config.reap_interval
                report.kept_house = True
                with report.surviving("the dead set"):
                    trim(self.dead_set)
        report.seconds = monotonic() - started
        if report.did_something:
            logger.info("%s", report)
        return report

    def register_unknown(self) -> int:
        """Register the owners that nobody registered: their keys were deleted, or evicted, under
        their jobs. How many; no job moves: they are judged like any other from here on."""
        adopted = 0
        for owner, queue_lists in self.keyspace.owners().items():
            if self.registry.adopt(owner, queue_lists):
                adopted += 1
                logger.warning(
                    "Unknown owner %s is registered now. Its jobs are given back if nobody is "
                    "heard under that name for a full owner_ttl: watch it, by a worker that runs "
                    "or by `%s reap --wait %.0f`.",
                    owner,
                    command(),
                    watch_time(self.config.owner_ttl),
                )
        return adopted

    def _reap_owner(
        self, facts: Facts, score: int, reason: Reason, report: Report
    ) -> Steps[dict[str, Any] | None]:
        """What the history of deaths has of it; None where nobody died."""
        owner, host = facts.owner, facts.process.host
        if report.dry_run:
            report.dead[owner] = reason
            report.recovered += Holdings(self.database).of([owner])[owner].in_flight
            return None
        # The mark holds only if the owner was not heard since the verdict's evidence.
        marked = self.registry.mark(facts, score, TOMBSTONE, reason.value)
        if marked is None:
            return None
        report.dead[owner] = reason
        before = report.recovered, report.killed
        titles = yield from self.drain_in_steps(marked, reason.value, report)
        recovered, killed = report.recovered - before[0], report.killed - before[1]
        taken = recovered + killed
        suffix = f" and {taken - len(titles)} more" if taken > len(titles) else ""
        said = f": {', '.join(titles)}{suffix}" if titles else ""
        name = f"{facts.node} ({owner})" if facts.node else owner
        text = "Worker %s is dead: %s. %d of its jobs were taken back%s."
        logger.warning(text, name, reason.value, taken, said)
        pid = facts.process.pid
        reaped = ReapedOwner(owner, host, pid, facts.app, reason.value, recovered, killed)
        owner_reaped.send(sender=self.sender, reaped=reaped)
        return {**reaped._asdict(), "node": facts.node, "state": facts.state, "heard": score}

    def _drain_tombstones(self, report: Report) -> Steps[None]:
        """Once more: what landed late, and what a crashed reaper left."""
        tombstones = self.registry.tombstones()
        if not tombstones:
            return
        now, holdings = self.database.server_time(), Holdings(self.database)
        held = holdings.of([*tombstones])
        for owner, facts in self.registry.facts(tombstones).items():
            if owner in self._draining:
                continue
            with report.surviving(f"tombstone of {owner}"):
                full = held[owner].in_flight
                if full:
                    yield from self.drain_in_steps(facts, "its owner was reaped", report)
                    full = holdings.of([owner])[owner].in_flight
                if now > tombstones[owner] and not full:
                    self.registry.drop_tombstone(owner)

    def drain(self, facts: Facts, reason: str, report: Report) -> list[str]:
        """Empty the lists of an owner that is marked reaped; titles of the first few jobs."""
        return finish(self.drain_in_steps(facts, reason, report))

    def drain_in_steps(self, facts: Facts, reason: str, report: Report) -> Steps[list[str]]:
        """As ``drain``, a batch of jobs in each step."""
        self._draining.add(facts.owner)
        try:
            return (yield from self._drain(facts, reason, report))
        finally:
            self._draining.discard(facts.owner)

    def _drain(self, facts: Facts, reason: str, report: Report) -> Steps[list[str]]:
        owner, titles = facts.owner, list[str]()
        self._unland(facts, report)
        held = self.lists.held(owner)
        hung, stopping = facts.was == HUNG, facts.was == STOPPING
        running = Running(held.running, excused=hung, at_death=facts.ran, stopping=stopping)
        struck = set[str]()  # digests of jobs that have had the strike, or stop, of this death
        for queue_list, claims in groupby(sorted(held.claims, key=queue_list_of), queue_list_of):
            with report.surviving(f"private list of {owner} for {queue_list}"):
                claims_here = [*claims]
                yield from self._drain_list(
                    facts, claims_here, running, struck, reason, titles, report
                )
        if held.claims:  # a frozen process that still waits may have got one of them at once
            self._unland(facts, report)
        return titles

    def _unland(self, facts: Facts, report: Report) -> None:
        with report.surviving(f"what landed for {facts.owner}"):
            report.recovered += self.lists.unland(facts.owner, facts.lists)

    def _drain_list(
        self,
        facts: Facts,
        claims: list[str],
        running: Running,
        struck: set[str],
        reason: str,
        titles: list[str],
        report: Report,
    ) -> Steps[None]:
        """Newest first, each to the front of the queue: the old order is the new one."""
        left = deque(claims)
        while left:
            batch = [*islice(left, BATCH)]
            jobs, seen = self.lists.jobs(facts.owner, batch, ROOM)
            for _ in range(seen):
                left.popleft()
            if not jobs:
                continue
            with forks.kept_off():  # the app's tasks are asked for their limits
                outcomes = self._settle(jobs, running, struck, facts, reason, report)
                for outcome in outcomes:
                    self._note(outcome, titles, report)
            # Of two with the same bytes the other one was counted a moment ago. Where nothing went,
            # somebody else counts them: the next pass tries again.
            again = [result.recovery.job for result in outcomes if result.answer == b"recounted"]
            if len(again) < len(jobs):
                left.extendleft(job.claim_id for job in reversed(again))
            yield

    def _settle(
        self,
        jobs: list[Job],
        running: Running,
        struck: set[str],
        facts: Facts,
        reason: str,
        report: Report,
    ) -> list[Outcome]:
        """Decide on jobs and carry that out; one that cannot be decided on holds up no other.
        ``struck``: digests of jobs that this death has struck already; copies of one message share
        a history, and two strikes of one death would be two thirds of a job's life."""
        details = {"reason": reason, "app_name": facts.app, "node": facts.node}
        try:
            recoveries = self.judge.recoveries(jobs, running, self.limits, struck, **details)
            decided = [(recovery, ask(recovery, self.sender)) for recovery in recoveries]
            expires = facts.lists.get(jobs[0].queue_list, 0)
            outcomes = self.judge.carry_out(decided, expires, marked=True, notice=self.notice)
            done = [result.recovery for result in outcomes if result.answer == b"ok"]
            struck.update(one.digest for one in done if one.blame is not Blame.NONE)
            return outcomes
        except Exception as exc:
            if isinstance(exc, RedisError):
                self.database.server_time()  # raises, too, where it is no single job's fault
            if len(jobs) == 1:
                report.failed(f"job {jobs[0].title} of {facts.owner}", exc)
                return []
            alone = (self._settle([job], running, struck, facts, reason, report) for job in jobs)
            return [outcome for outcomes in alone for outcome in outcomes]

    def _note(self, outcome: Outcome, titles: list[str], report: Report) -> None:
        recovery, answer = outcome.recovery, outcome.answer
        if isinstance(answer, Exception):
            report.failed(f"job {recovery.title} of {recovery.job.owner}", answer)
        if answer != b"ok":
            return
        dead = tell(outcome, self.sender)
        if len(titles) < NAMED:
            titles.append(recovery.title)
        if dead is not None:
            report.killed += 1
            return
        report.recovered += 1
        if recovery.probation:
            report.probation.add(recovery.job.queue_list)


def _check_schema(facts: Facts) -> None:
    """Warn once about an owner whose data another version of this package may not read."""
    if facts.schema != SCHEMA:
        warn_once(
            f"Owner {facts.owner} registered data of schema {facts.schema[:20]}; this version "
            f"reads schema {SCHEMA}. Jobs that it holds in another form are not recovered: empty "
            "the database with the version that wrote it."
        )
