"""The reaper: one pass that finds dead owners and gives their jobs back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from .config import Config
from .dead_set import DeadJob, DeadSet, dead_job
from .facts import Facts
from .job import Job, digest, parse
from .keys import Keys
from .owner import LocalProcess, ProcessImage, look_at
from .private_list import PrivateLists
from .recoveries import Recoveries
from .recovery import Decision, Recovery
from .registry import Registry, run_id
from .scripts import Scripts
from .signals import ask, job_killed, job_recovered, owner_reaped
from .suspects import Suspects
from .verdict import Evidence, Reason, Verdict, judge
from .watch import Watch

logger = logging.getLogger(__name__)

#: Jobs looked at and moved in one round trip.
BATCH = 100

#: Batches in a row without progress after which a list is left for the next pass.
STALLS = 3

#: Seconds a tombstone's lists are drained again. A blocking claim of a frozen process lands
#: at the latest when its block times out; the rest is for the network.
TOMBSTONE = 60.0

#: Keys the full sweep asks for in one SCAN step.
SCAN_COUNT = 1000


@dataclass
class Report:
    """What one pass found and did."""

    owners: int = 0
    #: Dead owners -> why.
    dead: dict[str, Reason] = field(default_factory=dict)
    recovered: int = 0
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
        verb = "would recover" if self.dry_run else "recovered"
        reasons = "; ".join(f"{owner}: {reason.value}" for owner, reason in self.dead.items())
        return (
            f"reap: {len(self.dead)} of {self.owners} owners dead, {verb} {self.recovered} jobs, "
            f"killed {self.killed}, adopted {self.adopted}, errors {self.errors}, "
            f"{self.seconds:.3f} s" + (f" ({reasons})" if reasons else "")
        )


class Reaper:
    """Finds dead owners and empties their private lists; holds no loop and no thread.

    Arguments:
        client: a plain client for the broker's database.
        watch: a watch that is kept by heartbeats; without one, the silence of owners is added
            up over passes in Redis.
        sender: the Celery app, for receivers of signals.
        announce: tells the caller of a killed job; True when that is done.
    """

    def __init__(
        self,
        client: Redis,
        config: Config,
        *,
        watch: Watch | None = None,
        sender: Any = None,
        announce: Callable[[DeadJob], bool] | None = None,
    ) -> None:
        keys = Keys(config.global_keyprefix)
        self.client = client
        self.config = config
        self.keys = keys
        self.registry = Registry(client, keys, config)
        self.lists = PrivateLists(client, keys, config)
        self.recoveries = Recoveries(client, keys, config)
        self.dead_set = DeadSet(client, keys, config)
        self.suspects = Suspects(client, keys, config)
        self.scripts = Scripts(client)
        self.process = ProcessImage.current()
        self.watch = watch
        self.sender = sender
        self.announce = announce

    def reap(
        self,
        only: Collection[str] | None = None,
        *,
        full: bool = False,
        dry_run: bool = False,
        lock: str = "",
        lock_for: float = 0.0,
    ) -> Report:
        """One pass.

        Arguments:
            only: look at these owners alone; None for all.
            full: also look for private lists that no registry knows (SCAN of the keyspace).
            dry_run: judge and count, change nothing.
            lock: name of a scope in which one pass per ``lock_for`` seconds is enough.

        Raises:
            redis.exceptions.RedisError: the registry could not be read at all.
        """
        started = monotonic()
        report = Report(dry_run=dry_run)
        if lock and not self._lock(lock, lock_for):
            report.ran = False
            return report
        if full:
            self._sweep(report)
        verdicts = self.judge_all(only, keep=not dry_run)
        report.owners = len(verdicts)
        for facts, score, verdict in verdicts:
            if not verdict.dead:
                continue
            try:
                self._reap_owner(facts, score, verdict.reason, report)
            except RedisError as exc:
                self._failed(report, f"owner {facts.owner}", exc)
        if not dry_run:
            if only is None:
                self._again(report)
                self._housekeeping(report)
        report.seconds = monotonic() - started
        if report.did_something:
            logger.info("%s", report)
        return report

    def _lock(self, scope: str, seconds: float) -> bool:
        """One pass per interval; never released, it expires, so a crash holds up nobody."""
        return bool(
            self.client.set(self.keys.lock(scope), 1, nx=True, px=max(1, int(seconds * 1000)))
        )

    # -- judging

    def judge_all(
        self, only: Collection[str] | None = None, *, keep: bool = False
    ) -> list[tuple[Facts, int, Verdict]]:
        """Every registered owner (or ``only`` some) with its score and verdict.

        Arguments:
            keep: add what is seen to the suspects, where passes add up the silence.
        """
        scores = self.registry.owners()
        chosen = sorted(set(scores) if only is None else set(scores) & set(only))
        if not scores:
            return []
        # Whoever superseded one of them is an owner of the same host.
        hosts = {owner.partition("|")[0] for owner in chosen}
        facts = self.registry.facts(o for o in scores if o.partition("|")[0] in hosts)
        server_run = run_id(self.client)
        silence = self._silence(scores, server_run, keep)
        return [
            (
                facts[owner],
                scores[owner],
                judge(self._evidence(facts[owner], silence(owner), facts, server_run)),
            )
            for owner in chosen
        ]

    def _silence(
        self, scores: Mapping[str, int], server_run: str, keep: bool
    ) -> Callable[[str], float | None]:
        watch = self.watch
        if watch is not None:
            return lambda owner: watch.silent_for(owner, scores[owner], monotonic())
        seen = self.suspects.look(scores, self.registry.server_time(), server_run, keep=keep)
        return seen.get

    def _evidence(
        self,
        facts: Facts,
        silent_for: float | None,
        others: Mapping[str, Facts],
        server_run: str,
    ) -> Evidence:
        evidence = local_evidence(facts, self.process, others.values(), silent_for)
        quiet = silent_for is not None and silent_for >= 2 * facts.heartbeat_interval
        if evidence.process is not None or not quiet:
            return evidence
        connected = self.registry.connected(facts, server_run)
        return Evidence(
            heartbeat_interval=evidence.heartbeat_interval,
            owner_ttl=evidence.owner_ttl,
            silent_for=silent_for,
            connected=connected,
        )

    # -- reaping one owner

    def _reap_owner(self, facts: Facts, score: int, reason: Reason, report: Report) -> None:
        owner = facts.owner
        if report.dry_run:
            report.dead[owner] = reason
            report.recovered += self.lists.sizes([(owner, facts.lists)]).get(owner, 0)
            return
        # The mark holds only if the owner was not heard since the verdict's evidence.
        if not self.registry.mark(owner, facts.process.host, score, TOMBSTONE, reason.value):
            return
        report.dead[owner] = reason
        self.registry.cut(facts, run_id(self.client))
        before = report.recovered + report.killed
        self._drain(facts.with_(was=facts.state), reason.value, report)
        jobs = report.recovered + report.killed - before
        logger.warning(
            "Owner %s is dead: %s. %d of its jobs were taken back.", owner, reason.value, jobs
        )
        owner_reaped.send(sender=self.sender, owner=owner, reason=reason.value, jobs=jobs)

    def _again(self, report: Report) -> None:
        """Drain tombstones again: what landed late, and what a crashed reaper left."""
        tombstones = self.registry.tombstones()
        if not tombstones:
            return
        now = self.registry.server_time()
        for owner, facts in self.registry.facts(tombstones).items():
            try:
                self._drain(facts, "its owner was reaped", report)
                left = sum(self.lists.sizes([(owner, facts.lists)]).values())
                if not left and now > tombstones[owner]:
                    self.registry.forget_tombstone(owner)
            except RedisError as exc:
                self._failed(report, f"tombstone of {owner}", exc)

    def _drain(self, facts: Facts, reason: str, report: Report) -> None:
        for queue_list, expires in facts.lists.items():
            try:
                self._drain_list(facts, queue_list, expires, reason, report)
            except RedisError as exc:
                self._failed(report, f"private list of {facts.owner} for {queue_list}", exc)

    def _drain_list(
        self, facts: Facts, queue_list: str, expires: int, reason: str, report: Report
    ) -> None:
        """Newest first, each to the front of the queue: the old order is the new one."""
        stalls = 0
        while stalls < STALLS:
            jobs = self.lists.in_flight(facts.owner, queue_list, BATCH)
            if not jobs:
                return
            if not self._drain_batch(facts, jobs, expires, reason, report):
                stalls += 1

    def _drain_batch(
        self, facts: Facts, jobs: Sequence[Job], expires: int, reason: str, report: Report
    ) -> bool:
        """Recover or kill some jobs; False when none of them left the list."""
        counters = self.recoveries.counters([digest(job.payload) for job in jobs])
        # A deploy or an eviction is not the jobs' fault.
        strike = facts.was != "stopping"
        decided = []
        for job, known in zip(jobs, counters, strict=True):
            recovery = Recovery.of(
                job,
                parse(job.payload),
                known,
                reason=reason,
                app_name=facts.app,
                strike=strike,
            )
            decided.append((recovery, ask(recovery, self.sender) is Decision.KILL))
        spared = [recovery for recovery, kill in decided if not kill]
        killed = [recovery for recovery, kill in decided if kill]
        calls = [self.dead_set.kill(recovery, reason, marked=True) for recovery in killed]
        if spared:
            # One script for all, so that a waiting consumer finds the oldest in front.
            calls.append(self.recoveries.recover(spared, expires, marked=True))
        replies = self.scripts.run_all(calls, errors=True)
        outcomes = [(recovery, True, reply) for recovery, reply in zip(killed, replies)]
        if spared:
            given_back = replies[-1]
            if isinstance(given_back, Exception):
                given_back = [given_back] * len(spared)
            outcomes += [(recovery, False, reply) for recovery, reply in zip(spared, given_back)]
        return any([self._outcome(facts, *outcome, report) for outcome in outcomes])

    def _outcome(
        self, facts: Facts, recovery: Recovery, kill: bool, reply: Any, report: Report
    ) -> bool:
        """Note what became of one job; True when it left the private list."""
        if isinstance(reply, Exception):
            self._failed(report, f"job {recovery.title} of {facts.owner}", reply)
            return False
        if reply == b"ok":
            self._done(recovery, kill, report)
        return reply in (b"ok", b"moved")

    def _done(self, recovery: Recovery, kill: bool, report: Report) -> None:
        if not kill:
            report.recovered += 1
            job_recovered.send(sender=self.sender, recovery=recovery)
            return
        report.killed += 1
        job = dead_job(recovery, recovery.reason)
        logger.error(
            "Job %s was killed after %d strikes and %d recoveries (last: %s). It is whole in the "
            "dead set as %s: look with `celery superfetch dead show`, put it back with `retry`.",
            recovery.title,
            recovery.strikes,
            recovery.recoveries,
            recovery.reason,
            job.id,
        )
        job_killed.send(sender=self.sender, job=job)
        if self.announce is not None:
            self._announce(job)

    # -- the rest of a pass

    def _announce(self, job: DeadJob) -> None:
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

    def _housekeeping(self, report: Report) -> None:
        """Announce what a crashed killer left, and drop what is too old."""
        try:
            if self.announce is not None:
                for job in self.dead_set.unannounced():
                    self._announce(job)
            dropped = self.dead_set.trim()
        except RedisError as exc:
            self._failed(report, "the dead set", exc)
            return
        if dropped:
            logger.warning("%d jobs older than dead_ttl were dropped from the dead set.", dropped)

    def _sweep(self, report: Report) -> None:
        """Register the owners of private lists that nobody knows; never drains them."""
        for key in self.client.scan_iter(match=self.keys.private_pattern, count=SCAN_COUNT):
            owner, queue_list = self.keys.parse_private(key.decode(errors="surrogateescape"))
            try:
                if report.dry_run:
                    continue
                if self.registry.adopt(owner, queue_list, TOMBSTONE) != "known":
                    report.adopted += 1
                    logger.warning(
                        "Private list of unknown owner %s for queue %s: registered. Its jobs are "
                        "given back if nobody is heard under that name for a full owner_ttl.",
                        owner,
                        queue_list,
                    )
            except RedisError as exc:
                self._failed(report, f"private list {key!r}", exc)

    def _failed(self, report: Report, what: str, exc: Exception) -> None:
        report.errors += 1
        logger.error(
            "reap: %s: %s. It was left as it is, nothing was lost; the next pass tries again.",
            what,
            exc,
        )


def local_evidence(
    facts: Facts,
    here: ProcessImage,
    others: Collection[Facts],
    silent_for: float | None,
) -> Evidence:
    """What can be known of an owner without asking the server."""
    process: LocalProcess | None = None
    pool_left = False
    superseded = False
    if here.same_ground(facts.process):
        process = look_at(facts.process.pid, facts.process.start_time)
        superseded = _superseded(facts, here, others)
        if process is not LocalProcess.RUNNING:
            pool_left = any(look_at(*child) is LocalProcess.RUNNING for child in facts.pool)
    return Evidence(
        heartbeat_interval=facts.heartbeat_interval,
        owner_ttl=facts.owner_ttl,
        silent_for=silent_for,
        process=process,
        superseded=superseded,
        pool_left=pool_left,
        reaped=facts.state == "reaped",
    )


def _superseded(facts: Facts, here: ProcessImage, others: Collection[Facts]) -> bool:
    """Whether a newer program of the same process exists (HUP): this one, or a registered one."""
    if facts.process.same_process(here) and facts.process.image != here.image:
        return True
    return any(
        other.process.same_process(facts.process)
        and other.process.image != facts.process.image
        and other.registered_at > facts.registered_at
        for other in others
    )
