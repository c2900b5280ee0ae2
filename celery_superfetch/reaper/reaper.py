"""The reaper: one pass that finds dead owners (processes that had claimed jobs) and recovers their
jobs.

The reaper has no loop and no thread. Each worker makes a pass when it starts, and then in its
maintenance thread: each `reap_interval`, and at once if a worker on its host has died. Beat's reap
task and the command `superfetch reap` make passes, too. (`superfetch rollback` calls only
``register_unknown``.)

A pass judges each owner, marks a dead one as reaped in the registry, and only then moves its jobs
(``drain.py``). The mark is called the *tombstone*. If the reaping process dies before the mark,
nothing has changed. If it dies after the mark, the next pass of any reaper moves the jobs that are
left (``_drain_tombstones``), but does not repeat the report of the death: the line "Worker
... declared dead", the signal ``owner_reaped`` and the entry in the history of deaths are missing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from time import monotonic
from typing import Any

from ..model.humanize import command, number
from ..model.log_text import one_line_each
from ..model.owner_record import SCHEMA, OwnerRecord
from ..model.staleness import StalenessTracker, watch_time
from ..model.strikes import Limits
from ..model.verdict import DECLARED_DEAD_BEFORE, Reason
from ..signals import ReapedOwner, owner_reaped
from ..store.database import Database, Structure
from ..store.dead_set import DeadSetStore
from ..store.in_flight_jobs import InFlightJobs
from ..store.keyspace import Keyspace
from ..store.owner_registry import OwnerRegistry
from ..store.redis.server import warn_once
from ..store.stats import DEATHS_MAX, Stats
from ..store.strike_counters import Notice
from .drain import OwnerDrain, Steps, finish
from .evidence import judge_all
from .report import Report
from .trimming import trim

logger = one_line_each(logging.getLogger(__name__))

#: Seconds for which passes look again at the lists of an owner that was reaped. If the process was
#: only frozen, its blocking read still waits on the server, and may move a job to its lists.
TOMBSTONE_S = 60.0


class Reaper(Structure):
    """A reaper of one database: finds dead owners, and empties their private lists.

    Arguments:
        staleness: for how long each owner has sent no heartbeat, as this process watched it. None:
            no owner is found dead by missing heartbeats alone.
        sender: the Celery app, as the sender of signals.
        notice: makes the failure notification of a dead-lettered job: the message of a job that
            informs the publisher. None: no publisher is informed.
        limits: at how many strikes, stops or deaths a job is dead-lettered; by default those of the
            configuration (see ``OwnerDrain``).
    """

    def __init__(
        self,
        database: Database,
        *,
        staleness: StalenessTracker | None = None,
        sender: Any = None,
        notice: Notice | None = None,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(database)
        self.registry = OwnerRegistry(database)
        self.keyspace = Keyspace(database)
        self.dead_set = DeadSetStore(database)
        self._drain = OwnerDrain(database, limits or Limits.of(self.config), notice, sender)
        self.stats = Stats(database)
        self.sender = sender
        self.staleness = staleness
        #: Deaths that are not in the history of deaths yet, each with its time (monotonic s). If
        #: the server refuses to write them (it is over its memory limit), or its reply is lost, the
        #: next pass tries again.
        self.deaths: deque[tuple[float, dict[str, Any]]] = deque(maxlen=DEATHS_MAX)
        self._next_housekeeping = 0.0

    def reap(self, only: Collection[str] | None = None, *, dry_run: bool = False) -> Report:
        """Make one pass over all owners, or over those in ``only``; with ``dry_run`` change
        nothing.

        Raises:
            RedisError: the registry cannot be read. All other errors are in the report.
        """
        return finish(self.reap_in_steps(only, dry_run=dry_run))

    def reap_in_steps(
        self, only: Collection[str] | None = None, *, dry_run: bool = False
    ) -> Steps[Report]:
        """Make one pass, as ``reap``, a batch of jobs in each step. If the process dies between two
        steps, the next pass of any reaper moves the jobs that are left, since their owner is
        marked."""
        started, report = monotonic(), Report(dry_run=dry_run)
        verdicts = judge_all(self.registry, self.staleness, only, report.logging_errors)
        report.owners = len(verdicts)
        report.lists.update(*(record.lists for record, _, _ in verdicts))
        for record, score, verdict in verdicts:
            _check_schema(record)
            if verdict.dead:
                with report.logging_errors(f"worker (owner={record.owner})"):
                    if death := (yield from self._reap_owner(record, score, verdict, report)):
                        self.deaths.append((monotonic(), death))
        if self.deaths:
            with report.logging_errors("the record of recent deaths"):
                self.stats.record_deaths(self.deaths)
                self.deaths.clear()
        if not dry_run and only is None:
            yield from self._drain_tombstones(report)
            # Not at each pass: the passes of many idle workers would send many such commands.
            if started >= self._next_housekeeping:
                self._next_housekeeping = started + 6 * self.config.reap_interval
                report.trimmed_dead_set = True
                with report.logging_errors("the dead set"):
                    trim(self.dead_set)
        report.seconds = monotonic() - started
        if report.did_something:
            logger.info("%s", report)
        return report

    def register_unknown(self) -> int:
        """Register owners that hold jobs and have no owner record, since it was deleted or evicted;
        return how many. No job moves: from here on they are judged like any other owner."""
        registered = 0
        for owner, queue_lists in self.keyspace.owners().items():
            if self.registry.register_unknown_owner(owner, queue_lists):
                registered += 1
                logger.warning(
                    "Unknown worker found and registered (owner=%s): Redis has jobs of it, but no "
                    "record. They are recovered after %g s without a heartbeat of it (owner_ttl): "
                    "keep a worker running, or call `%s reap --wait %.0f`.",
                    owner,
                    self.config.owner_ttl,
                    command(),
                    watch_time(self.config.owner_ttl),
                )
        return registered

    def _reap_owner(
        self, record: OwnerRecord, score: int, reason: Reason, report: Report
    ) -> Steps[dict[str, Any] | None]:
        """Mark a dead owner as reaped, and recover its jobs; return its entry for the history of
        deaths. None: the owner has sent a heartbeat since the verdict, another reaper was faster,
        or this is a dry run."""
        owner, host = record.owner, record.process.host
        if report.dry_run:
            report.dead[owner] = reason
            report.recovered += InFlightJobs(self.database).counts([owner])[owner].in_flight
            return None
        # The script marks only an owner that has sent no heartbeat since the verdict's evidence.
        marked = self.registry.mark(record, score, TOMBSTONE_S, reason.value)
        if marked is None:
            return None
        report.dead[owner] = reason
        recovered_before, killed_before = report.recovered, report.killed
        titles: list[str] = []
        # If an error ended this here, the death would never be reported: the next pass finds the
        # mark, and drains what is left without a report.
        with report.logging_errors(f"jobs of a worker that was declared dead (owner={owner})"):
            titles = yield from self._drain.in_steps(marked, reason.value, report)
        recovered = report.recovered - recovered_before
        killed = report.killed - killed_before
        unnamed = recovered + killed - len(titles)
        suffix = f" and {unnamed} more" if unnamed > 0 else ""
        logger.warning(
            "Worker %s declared dead (owner=%s): %s. %s recovered%s%s.",
            record.node or "without a node name",
            owner,
            reason.value,
            number(recovered, "job"),
            f", {killed} moved to the dead set" if killed else "",
            f": {', '.join(titles)}{suffix}" if titles else "",
        )
        pid = record.process.pid
        reaped = ReapedOwner(owner, host, pid, record.app, reason.value, recovered, killed)
        owner_reaped.send(sender=self.sender, reaped=reaped)
        return {
            **reaped._asdict(),
            "node": record.node,
            "state": record.state,
            "last_heartbeat": score,
        }

    def _drain_tombstones(self, report: Report) -> Steps[None]:
        """Recover the jobs that reached the lists of reaped owners after the mark, and those that a
        reaper has left because it died; remove tombstones that have expired."""
        tombstones = self.registry.tombstones()
        if not tombstones:
            return
        now, in_flight_jobs = self.database.server_time(), InFlightJobs(self.database)
        held = in_flight_jobs.counts([*tombstones])
        for owner, record in self.registry.records(tombstones).items():
            if owner in self._drain.owners:
                continue
            with report.logging_errors(f"jobs of a worker that was declared dead (owner={owner})"):
                full = held[owner].in_flight
                if full:
                    yield from self._drain.in_steps(record, DECLARED_DEAD_BEFORE, report)
                    full = in_flight_jobs.counts([owner])[owner].in_flight
                if now > tombstones[owner] and not full:
                    self.registry.drop_tombstone(owner)

    def drain(self, record: OwnerRecord, reason: str, report: Report) -> list[str]:
        """Empty the lists of an owner that is marked as reaped; return the titles of the first few
        jobs. The state machine of the tests calls this, for a death without evidence."""
        return finish(self._drain.in_steps(record, reason, report))


def _check_schema(record: OwnerRecord) -> None:
    """Warn once about an owner whose data another version of this package may not read."""
    if record.schema != SCHEMA:
        warn_once(
            f"Worker registered with data schema {record.schema[:20]}, and this version reads "
            f"schema {SCHEMA} (owner={record.owner}). Jobs in another form are not recovered: let "
            "the version that wrote them finish them."
        )
