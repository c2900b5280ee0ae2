"""The reaper: one pass that finds dead owners and gives their jobs back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from time import monotonic
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from .config import Config
from .dead_set import JUNK_LIMIT, DeadJob, DeadSet
from .drain import Drain, Report, failed
from .evidence import Jury
from .facts import Facts
from .keys import Keys
from .private_list import PrivateLists
from .recovery import Limits
from .registry import Registry, run_id
from .scripts import Scripts
from .signals import ReapedOwner, owner_reaped
from .verdict import Reason
from .watch import Watch

logger = logging.getLogger(__name__)

#: Seconds a tombstone's lists are drained again. A blocking claim of a frozen process lands
#: at the latest when its block times out; the rest is for the network.
TOMBSTONE = 60.0

#: Passes of one reaper from one look at the dead set's announcements and caps to the next.
HOUSEKEEPING = 6

#: Seconds after which a lock that is held for longer is asked for again.
ASK_AGAIN = 60.0

#: Keys the full sweep asks for in one SCAN step.
SCAN_COUNT = 1000


class Reaper:
    """Finds dead owners and empties their private lists; holds no loop and no thread.

    Arguments:
        client: a plain client for the broker's database.
        watch: a watch that is kept by heartbeats; without one, the silence of owners is added
            up over passes in Redis.
        sender: the Celery app, for receivers of signals.
        announce: tells the caller of a killed job; True when that is done.
        limits: when a job is killed; None for the options' alone.
    """

    def __init__(
        self,
        client: Redis,
        config: Config,
        *,
        watch: Watch | None = None,
        sender: Any = None,
        announce: Callable[[DeadJob], bool] | None = None,
        limits: Limits | None = None,
    ) -> None:
        keys = Keys(config.global_keyprefix)
        self.client = client
        self.config = config
        self.keys = keys
        self.registry = Registry(client, keys, config)
        self.lists = PrivateLists(client, keys, config)
        self.scripts = Scripts(client)
        self.dead_set = DeadSet(client, keys, config)
        self.jury = Jury(client, keys, config, watch)
        self.drain = Drain(client, keys, config, sender, announce, limits)
        self.sender = sender
        #: Lock of a long interval -> when it is asked for again (monotonic s).
        self._refused: dict[str, float] = {}
        self._next_housekeeping = 0.0

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
            self.sweep(report)
        verdicts = self.jury.judge_all(only, keep=not dry_run)
        report.owners = len(verdicts)
        for facts, score, verdict in verdicts:
            if not verdict.dead:
                continue
            try:
                self._reap_owner(facts, score, verdict.reason, report)
            except RedisError as exc:
                failed(report, f"owner {facts.owner}", exc)
        if not dry_run and only is None:
            self._again(report)
            # Commands that an idle fleet need not send at each pass.
            if started >= self._next_housekeeping:
                self._next_housekeeping = started + HOUSEKEEPING * self.config.reap_interval
                self._housekeeping(report)
        report.seconds = monotonic() - started
        if report.did_something:
            logger.info("%s", report)
        return report

    def _lock(self, scope: str, seconds: float) -> bool:
        """One pass per interval; never released, it expires, so a crash holds up nobody."""
        now = monotonic()
        if now < self._refused.get(scope, 0.0):
            return False
        milliseconds = max(1, int(seconds * 1000))
        ours = bool(self.scripts.run("lock", [self.keys.lock(scope)], [milliseconds]))
        if not ours and seconds > ASK_AGAIN:
            self._refused[scope] = now + ASK_AGAIN
        return ours

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
        before = report.recovered, report.killed
        self.drain.drain(facts.with_(was=facts.state), reason.value, report)
        reaped = ReapedOwner(
            owner=owner,
            host=facts.process.host,
            pid=facts.process.pid,
            app_name=facts.app,
            reason=reason.value,
            recovered=report.recovered - before[0],
            killed=report.killed - before[1],
        )
        jobs = reaped.recovered + reaped.killed
        logger.warning(
            "Owner %s is dead: %s. %d of its jobs were taken back.", owner, reason.value, jobs
        )
        owner_reaped.send(sender=self.sender, reaped=reaped)

    def _again(self, report: Report) -> None:
        """Drain tombstones again: what landed late, and what a crashed reaper left."""
        tombstones = self.registry.tombstones()
        if not tombstones:
            return
        now = self.registry.server_time()
        for owner, facts in self.registry.facts(tombstones).items():
            try:
                self.drain.drain(facts, "its owner was reaped", report)
                left = sum(self.lists.sizes([(owner, facts.lists)]).values())
                if not left and now > tombstones[owner]:
                    self.registry.forget_tombstone(owner)
            except RedisError as exc:
                failed(report, f"tombstone of {owner}", exc)

    # -- the rest of a pass

    def _housekeeping(self, report: Report) -> None:
        """Announce what a crashed killer left, and drop what is too old."""
        try:
            if self.drain.announce is not None:
                for job in self.dead_set.unannounced():
                    self.drain.tell(job)
            dropped = self.dead_set.trim()
        except RedisError as exc:
            failed(report, "the dead set", exc)
            return
        if dropped.old:
            logger.warning(
                "%d jobs older than dead_ttl were dropped from the dead set.", dropped.old
            )
        if dropped.surplus:
            logger.warning(
                "The dead set is full: its %d oldest jobs were dropped for newer ones. Look what "
                "is killed so often (`celery superfetch dead list`), keep what you need with "
                "`dead export`, or raise dead_limit (%d; for unparseable items it is %d).",
                dropped.surplus,
                self.config.dead_limit,
                JUNK_LIMIT,
            )

    def sweep(self, report: Report) -> None:
        """Register the owners of private lists that nobody knows; never drains them."""
        try:
            self._sweep(report)
        except RedisError as exc:  # SCAN may be forbidden; the rest of the pass is not
            failed(report, "the full sweep", exc)

    def _private_keys(self) -> Iterator[bytes]:
        for pattern in (self.keys.private_pattern, self.keys.held_pattern):
            yield from self.client.scan_iter(match=pattern, count=SCAN_COUNT)

    def _sweep(self, report: Report) -> None:
        for key in self._private_keys():
            try:
                owner, queue_list = self.keys.parse_private(key.decode())
            except UnicodeDecodeError:
                logger.warning("Key %r looks like a private list, but no owner made it.", key)
                continue
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
                failed(report, f"private list {key!r}", exc)
