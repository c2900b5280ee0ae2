"""The demo's eyes in Redis. They only look; what is shown here, `status` shows as well."""

from __future__ import annotations

from typing import Any

import redis
from celery import Celery

from celery_superfetch.model.config import Config
from celery_superfetch.store.database import Database
from celery_superfetch.store.dead_jobs import DeadJob, DeadJobs
from celery_superfetch.store.private_lists import PrivateLists
from celery_superfetch.store.registry import Registry

from .app import PREFIX, QUEUE
from .children import DemoError

#: One demo at a time in a database. It expires, should a demo be killed.
MARKER = f"{PREFIX}running"
MARKER_SECONDS = 600


class Observer:
    """Owners, private lists, the dead set and the counters of the demo's app."""

    def __init__(self, app: Celery, client: redis.Redis) -> None:
        options = app.conf.broker_transport_options
        config = Config.from_options({k: v for k, v in options.items() if k == "global_keyprefix"})
        database = Database(client, config)
        self.client = client
        self.keys = database.keys
        self.registry = Registry(database)
        self.lists = PrivateLists(database)
        self.dead_set = DeadJobs(database)

    # -- the place

    def occupy(self, clean: bool) -> None:
        """Make sure that nobody else's demo is in this database.

        Raises:
            DemoError: the server cannot be used, or the demo's queue is not empty.
        """
        try:
            if clean:
                self.clean()
            free = self.client.set(MARKER, 1, nx=True, ex=MARKER_SECONDS)
            waiting = self.waiting()
            if free and not waiting:
                self.clean()
                self.client.set(MARKER, 1, ex=MARKER_SECONDS)
                return
            if free:
                self.client.delete(MARKER)
        except redis.RedisError as exc:
            raise DemoError(f"the server cannot be used: {exc}") from exc
        what = f"the queue {QUEUE!r} holds {waiting} jobs" if free else "another demo is running"
        raise DemoError(
            f"{what} in this database. Nothing was touched. If that is left from a demo that was "
            f"killed, add `--clean`: it deletes the keys {PREFIX}* first, and no others."
        )

    def clean(self) -> None:
        """Delete every key of the demo."""
        for key in self.client.scan_iter(match=f"{PREFIX}*", count=1000):
            self.client.unlink(key)

    def waiting(self) -> int:
        """Jobs on the public queue."""
        return int(self.client.llen(self.keys.queue(QUEUE)))

    # -- owners and their jobs

    def owner_of(self, pid: int) -> str | None:
        """The owner that the worker with this MainProcess registered."""
        for owner in self.registry.owners():
            if owner.split("|")[1] == str(pid):
                return owner
        return None

    def in_flight(self, *owners: str) -> dict[str, int]:
        """Jobs in the private lists of some owners."""
        facts = self.registry.facts(owners)
        return self.lists.sizes((owner, facts[owner].lists) for owner in owners)

    def cause_of_death(self, owner: str) -> str | None:
        """Why an owner was declared dead; None while it was not."""
        reason: Any = self.client.hget(self.keys.facts(owner), "reason")
        return reason.decode() if reason else None

    def dead_jobs(self) -> list[DeadJob]:
        return list(self.dead_set)

    def counter(self, name: str) -> int:
        """One counter of `status`."""
        value: Any = self.client.hget(self.keys.stats, name)
        return int(value or 0)

    def stock_unacked(self) -> int:
        """Jobs that stock kombu holds back until its visibility timeout."""
        return int(self.client.hlen(f"{PREFIX}unacked"))
