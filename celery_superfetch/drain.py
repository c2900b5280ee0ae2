"""Empties the private lists of an owner that was reaped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from .config import Config
from .dead_set import DeadJob, DeadSet, dead_job
from .facts import Facts
from .job import Job, digest, parse
from .keys import Keys
from .private_list import PrivateLists
from .recoveries import Recoveries
from .recovery import Decision, Limits, Recovery, Running, blame
from .scripts import Scripts
from .signals import ask, job_killed, job_recovered
from .verdict import Reason

logger = logging.getLogger(__name__)

#: Jobs looked at and moved in one round trip, and bytes (but for the job that passes the mark): a
#: script keeps everybody else waiting.
BATCH = 50
ROOM = 256 * 1024

#: Batches in a row without progress after which a list is left for the next pass.
STALLS = 3


@dataclass
class Report:
    """What one pass found and did."""

    owners: int = 0
    #: Dead owners -> why.
    dead: dict[str, Reason] = field(default_factory=dict)
    recovered: int = 0
    #: Queue lists whose suspects went on probation.
    probation: set[str] = field(default_factory=set)
    killed: int = 0
    #: Owners or lists that nobody had registered and the full sweep found.
    adopted: int = 0
    errors: int = 0
    seconds: float = 0.0
    dry_run: bool = False
    #: False: another pass holds the lock of this scope; nothing was looked at.
    ran: bool = True

    @property
    def did_something(self) -> bool:
        """True when there is something to log."""
        return bool(self.dead or self.recovered or self.killed or self.adopted or self.errors)

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


class Drain:
    """Recovers or kills the jobs of reaped owners, a batch at a time.

    Arguments:
        sender: the Celery app, for receivers of signals.
        announce: tells the caller of a killed job; True when that is done.
        limits: when a job is killed; None for the options' alone.
    """

    def __init__(
        self,
        client: Redis,
        keys: Keys,
        config: Config,
        sender: Any,
        announce: Callable[[DeadJob], bool] | None,
        limits: Limits | None,
    ) -> None:
        self.lists = PrivateLists(client, keys, config)
        self.recoveries = Recoveries(client, keys, config)
        self.dead_set = DeadSet(client, keys, config)
        self.scripts = Scripts(client)
        self.sender = sender
        self.announce = announce
        self.limits = limits or Limits.of(config)

    def drain(self, facts: Facts, reason: str, report: Report) -> None:
        """Empty the private lists of one owner that is marked reaped.

        An error on one list or job is logged and counted; the others go on.
        """
        for queue_list, expires in facts.lists.items():
            try:
                self._drain_list(facts, queue_list, expires, reason, report)
            except RedisError as exc:
                failed(report, f"private list of {facts.owner} for {queue_list}", exc)

    def _drain_list(
        self, facts: Facts, queue_list: str, expires: int, reason: str, report: Report
    ) -> None:
        """Newest first, each to the front of the queue: the old order is the new one."""
        self.lists.unhold_all(facts.owner, queue_list)
        stalls, running = 0, None
        newest = self.lists.newest(facts.owner, queue_list, BATCH, ROOM)
        while stalls < STALLS:
            raws = self.scripts.ask(newest)
            jobs = [(digest(raw), Job(facts.owner, queue_list, raw)) for raw in raws]
            if not jobs:
                return
            running = running or self.lists.running(facts.owner, stopping=facts.was == "stopping")
            if not self._drain_batch(facts, jobs, running, expires, reason, report):
                stalls += 1
            # Who has been blamed is not blamed again for a copy that was claimed late.
            if any(name in running.claim_ids for name, _ in jobs):
                running = None

    def _drain_batch(
        self,
        facts: Facts,
        jobs: Sequence[tuple[str, Job]],
        running: Running,
        expires: int,
        reason: str,
        report: Report,
    ) -> bool:
        """Recover or kill some jobs, given with their digests; False when none left the list."""
        counters = self.recoveries.counters([name for name, _ in jobs])
        decided = []
        for (name, job), known in zip(jobs, counters, strict=True):
            envelope = parse(job.payload)
            recovery = Recovery.of(
                # Whatever is claimed again by a connection that died a moment later than its
                # process did not run: the strike goes with the claim that did.
                job._replace(claim_id=running.claim_ids.get(name, "")),
                envelope,
                known,
                reason=reason,
                app_name=facts.app,
                blame=blame(name, running, known, self.limits),
                limits=self.limits,
                waits=envelope.eta > time.time(),
            )
            decided.append((recovery, ask(recovery, self.sender) is Decision.KILL))
        spared = [recovery for recovery, kill in decided if not kill]
        killed = [recovery for recovery, kill in decided if kill]
        calls = [self.dead_set.kill(recovery, reason, marked=True) for recovery in killed]
        if spared:
            # One script for all, so that a waiting consumer finds the oldest in front.
            calls.append(self.recoveries.recover(spared, expires, marked=True))
        replies = self.scripts.run_all(calls, errors=True)
        left = [
            self._outcome(facts, recovery, True, reply, report)
            for recovery, reply in zip(killed, replies[: len(killed)], strict=True)
        ]
        if spared:
            error = isinstance(replies[-1], Exception)
            given_back = [replies[-1]] * len(spared) if error else replies[-1]
            left += [
                self._outcome(facts, recovery, False, reply, report)
                for recovery, reply in zip(spared, given_back, strict=True)
            ]
        return any(left)

    def _outcome(
        self, facts: Facts, recovery: Recovery, kill: bool, reply: Any, report: Report
    ) -> bool:
        """Note what became of one job; True when it left the private list."""
        if isinstance(reply, Exception):
            failed(report, f"job {recovery.title} of {facts.owner}", reply)
            return False
        outcome, *id = reply if kill else [reply]
        if outcome == b"ok":
            self._done(recovery, id[0].decode() if kill else None, report)
        return outcome in (b"ok", b"moved")

    def _done(self, recovery: Recovery, killed: str | None, report: Report) -> None:
        if killed is None:
            report.recovered += 1
            if recovery.probation:
                report.probation.add(recovery.job.queue_list)
            job_recovered.send(sender=self.sender, recovery=recovery)
            return
        report.killed += 1
        job = dead_job(recovery, recovery.reason, killed)
        logger.error(
            "Job %s was killed after %d strikes and %d recoveries (last: %s). It is whole in the "
            "dead set as %s: look with `celery superfetch dead show`, put it back with `retry`.",
            recovery.title,
            recovery.strikes,
            recovery.recoveries,
            recovery.reason,
            job.id,
        )
        if self.announce is not None:
            self.tell(job)  # the signal is part of it, and repeated by whoever takes over
        else:
            job_killed.send(sender=self.sender, job=job)

    def tell(self, job: DeadJob) -> None:
        """Announce a killed job; what fails is tried again by a later pass."""
        try:
            if self.announce is not None and self.announce(job):
                self.dead_set.announced(job.id)
        except Exception:  # the result backend's errors are its own; a later pass tries again
            logger.exception(
                "Killed job %s[%s] is in the dead set, but its caller could not be told. "
                "A later pass tries again.",
                job.task,
                job.task_id,
            )


def failed(report: Report, what: str, exc: Exception) -> None:
    """Note an error that the pass survives."""
    report.errors += 1
    logger.error(
        "reap: %s: %s. It was left as it is, nothing was lost; the next pass tries again.",
        what,
        exc,
    )
