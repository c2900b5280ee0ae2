"""The maintenance thread of a worker: looks at its host every second, and reaps."""

from __future__ import annotations

import threading
from time import monotonic

from celery import Celery
from celery.utils.log import get_logger
from redis.exceptions import RedisError

from .drain import Report
from .evidence import local_evidence
from .facts import Facts
from .membership import Membership
from .memberships import memberships
from .owner import ProcessImage
from .reaper import Reaper
from .tasks import reaper_of, scheduled_pass
from .verdict import MISSED_HEARTBEATS, judge

logger = get_logger(__name__)

#: Seconds between two looks at the processes of this host. A look costs no command.
LOOK_INTERVAL = 1.0

#: Lock scope of passes that one death on this host, or one silence elsewhere, set off. All
#: workers see it in the same second, and one pass is enough.
LOCK_LOCAL = "host:{host}"
LOCK_REMOTE = "remote"


class MaintenanceThread(threading.Thread):
    """Runs passes until it is stopped; survives any error of theirs."""

    def __init__(self, app: Celery) -> None:
        super().__init__(name="superfetch-maintenance", daemon=True)
        self.app = app
        self._stopped = threading.Event()
        self._rounds: dict[int, Rounds] = {}

    def run(self) -> None:
        while not self._stopped.wait(LOOK_INTERVAL):
            for membership in memberships():
                if not membership.joined:
                    continue
                rounds = self._rounds.get(id(membership))
                if rounds is None:
                    reaper = reaper_of(self.app, membership.client, membership.watch)
                    rounds = self._rounds[id(membership)] = Rounds(membership, reaper)
                try:
                    membership.catch_up()
                    rounds.go(monotonic())
                except (RedisError, OSError) as exc:
                    logger.warning("Maintenance could not ask the broker: %s", exc)
                except Exception:  # a thread that ended would take nobody's jobs back
                    logger.exception("Maintenance failed; it goes on.")

    def stop(self) -> None:
        """Stop after the pass under way."""
        self._stopped.set()
        self.join(timeout=LOOK_INTERVAL * 5)


class Rounds:
    """What the maintenance thread looks at for one membership."""

    def __init__(self, membership: Membership, reaper: Reaper) -> None:
        self.membership = membership
        self.reaper = reaper
        self._facts: dict[str, Facts] = {}
        self._next_pass = 0.0
        self._next_look: dict[str, float] = {}

    def go(self, now: float) -> None:
        """One round.

        Raises:
            redis.exceptions.RedisError: the broker cannot be asked; nobody is convicted.
        """
        interval = self.reaper.config.reap_interval
        dead = self._dead_neighbours(now)
        if dead:
            scope = LOCK_LOCAL.format(host=ProcessImage.current().host)
            self._note(self.reaper.reap(dead, lock=scope, lock_for=LOOK_INTERVAL / 2))
        suspects = self._due_suspects(now)
        if suspects:
            self._note(self.reaper.reap(suspects, lock=LOCK_REMOTE, lock_for=LOOK_INTERVAL / 2))
        if now >= self._next_pass:
            self._next_pass = now + interval
            self._note(scheduled_pass(self.reaper))

    def _note(self, report: Report) -> None:
        """Know of suspects before the next heartbeat tells."""
        self.membership.in_flight.probation |= report.probation

    def _dead_neighbours(self, now: float) -> list[str]:
        """Owners of this host whose process is gone; costs a command only for a new face."""
        others = [o for o in self.membership.neighbours if o != self.membership.owner]
        new = [owner for owner in others if owner not in self._facts]
        # Pool pids change, and matter only once the owner is gone: then they are read again
        # by the pass itself.
        self._facts = {owner: self._facts[owner] for owner in others if owner in self._facts}
        if new:
            self._facts.update(self.reaper.registry.facts(new))
        here = ProcessImage.current()
        everybody = [*self._facts.values(), self.membership.facts]
        return [
            owner
            for owner, facts in self._facts.items()
            if judge(local_evidence(facts, here, everybody, None)).dead
        ]

    def _due_suspects(self, now: float) -> list[str]:
        """Silent owners that are worth a verdict now: at once, then at each heartbeat."""
        interval = self.reaper.config.heartbeat_interval
        suspects = self.membership.watch.suspects(now, MISSED_HEARTBEATS * interval)
        self._next_look = {o: t for o, t in self._next_look.items() if o in suspects}
        due = [owner for owner in suspects if now >= self._next_look.get(owner, 0.0)]
        for owner in due:
            self._next_look[owner] = now + interval
        return due
