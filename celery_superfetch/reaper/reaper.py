"""The reaper: one pass that finds dead owners and gives their jobs back.

It has no loop and no thread. A pass is made by each worker when it starts, by its maintenance
thread (each `reap_interval`, and at once where a worker of its host died), by beat's reap task, and
by the command `superfetch reap`; `superfetch drain` only registers unknown owners by it. A pass
judges each owner, marks a dead one as reaped, and only then takes its jobs back. If the process
dies before the mark, nothing has changed; after it, the mark (a tombstone) makes the next pass of
any reaper take back the jobs that are left.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from time import monotonic
from typing import Any

from ..model.facts import SCHEMA, Facts
from ..model.log_text import one_line_each
from ..model.silence import Silence, watch_time
from ..model.strikes import Limits
from ..model.verdict import Reason
from ..model.words import command
from ..signals import ReapedOwner, owner_reaped
from ..store.counters import Notice
from ..store.database import Database, Structure
from ..store.dead_set import DeadSet
from ..store.history import MOST, History
from ..store.holdings import Holdings
from ..store.keyspace import Keyspace
from ..store.redis.server import warn_once
from ..store.registry import Registry
from .drain import OwnerDrain, Steps, finish
from .evidence import judge_all
from .report import Report
from .trimming import trim

logger = one_line_each(logging.getLogger(__name__))

#: Seconds for which passes look again at the lists of an owner that was reaped: a frozen process
#: may wait in a blocking read, and get a job after its death.
TOMBSTONE = 60.0


class Reaper(Structure):
    """Finds dead owners, and empties their private lists.

    Arguments:
        silence: for how long each owner was not heard; without it no owner counts as dead by its
            silence.
        sender: the Celery app, as the sender of signals.
        notice: makes the failure notification of a dead-lettered job; None: no caller is told.
        limits: at how many strikes, stops or deaths a job is dead-lettered; by default those of the
            configuration.
    """

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
        self._drain = OwnerDrain(database, limits or Limits.of(self.config), notice, sender)
        self.history = History(database)
        self.sender = sender
        self.silence = silence
        #: Deaths that are not in the history yet: a server over its memory limit takes them later.
        self.deaths: deque[tuple[float, dict[str, Any]]] = deque(maxlen=MOST)
        self._next_housekeeping = 0.0

    def reap(self, only: Collection[str] | None = None, *, dry_run: bool = False) -> Report:
        """Make one pass over all owners, or over ``only`` some; with ``dry_run`` change nothing.

        Raises:
            RedisError: the registry cannot be read. All other errors are in the report.
        """
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
            if (
                started >= self._next_housekeeping
            ):  # not at each pass: it costs an idle fleet commands
                self._next_housekeeping = started + 6 * self.config.reap_interval
                report.kept_house = True
                with report.surviving("the dead set"):
                    trim(self.dead_set)
        report.seconds = monotonic() - started
        if report.did_something:
            logger.info("%s", report)
        return report

    def register_unknown(self) -> int:
        """Register owners that hold jobs and have no owner record, since it was deleted or evicted;
        return how many. No job moves: from here on they are judged like any other owner."""
        adopted = 0
        for owner, queue_lists in self.keyspace.owners().items():
            if self.registry.adopt(owner, queue_lists):
                adopted += 1
                logger.warning(
                    "Unknown owner %s is registered now. Its jobs are given back if no "
                    "heartbeat comes under that name for a full owner_ttl: watch it, by a worker "
                    "that runs or by `%s reap --wait %.0f`.",
                    owner,
                    command(),
                    watch_time(self.config.owner_ttl),
                )
        return adopted

    def _reap_owner(
        self, facts: Facts, score: int, reason: Reason, report: Report
    ) -> Steps[dict[str, Any] | None]:
        """Mark a dead owner as reaped, and take its jobs back; return its entry for the history of
        deaths. None: it has sent a heartbeat since the verdict, or this is a dry run."""
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
        titles = yield from self._drain.in_steps(marked, reason.value, report)
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
        """Take back what came to reaped owners after their death, and what a reaper that died has
        left; remove tombstones that are over."""
        tombstones = self.registry.tombstones()
        if not tombstones:
            return
        now, holdings = self.database.server_time(), Holdings(self.database)
        held = holdings.of([*tombstones])
        for owner, facts in self.registry.facts(tombstones).items():
            if owner in self._drain.owners:
                continue
            with report.surviving(f"tombstone of {owner}"):
                full = held[owner].in_flight
                if full:
                    yield from self._drain.in_steps(facts, "its owner was reaped", report)
                    full = holdings.of([owner])[owner].in_flight
                if now > tombstones[owner] and not full:
                    self.registry.drop_tombstone(owner)

    def drain(self, facts: Facts, reason: str, report: Report) -> list[str]:
        """Empty the lists of an owner that is marked as reaped; return the titles of the first few
        jobs."""
        return finish(self._drain.in_steps(facts, reason, report))


def _check_schema(facts: Facts) -> None:
    """Warn once about an owner whose data another version of this package may not read."""
    if facts.schema != SCHEMA:
        warn_once(
            f"Owner {facts.owner} registered data of schema {facts.schema[:20]}; this version "
            f"reads schema {SCHEMA}. Jobs that it holds in another form are not recovered: empty "
            "the database with the version that wrote it."
        )
