"""The door in the wall: what there is to read of an app's database, for whoever only looks.

The console reads Redis by this class and by nothing else of the core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .migration.stock_unacked import Unacked
from .model.config import Config
from .model.facts import Facts
from .model.job import claimed_at
from .model.process import ProcessImage
from .model.verdict import Reason, judge
from .reaper.evidence import judge_all, local_evidence
from .store.counters import StrikeCounters
from .store.database import Database
from .store.dead_set import DeadSet
from .store.history import Counts, History
from .store.holdings import PARKED, PROBATION, RESERVED, RUNNING, STATES, Holding, Holdings, Place
from .store.keyspace import Keyspace
from .store.parked import Parked
from .store.queues import Queues, Suspects
from .store.redis.server import DEADLOCK, DEADLOCK_FIX, MAY_DEADLOCK, info, setting
from .store.redis.trouble import advice_for
from .store.redis.urls import client_at
from .store.registry import Registry
from .store.runs import RunCounts, Runs

if TYPE_CHECKING:  # a probe waits for neither
    from celery import Celery
    from redis import Redis

__all__ = ["PATIENCE", "STATES", "Counts", "Holding", "Inspector", "Place", "RunCounts"]
__all__ += ["advice_for"]
__all__ += ["PARKED", "PROBATION", "RESERVED", "RUNNING"]

#: Seconds that whoever looks waits for the server; Prometheus itself gives a scrape ten by default.
PATIENCE = 5.0


class Stray(NamedTuple):
    """Jobs on a queue that no owner has served."""

    jobs: int
    #: For how long (s) none came or went, as far as the server says: each is at least as old.
    idle_s: int | None


class Inspector:
    """Reads a database. ``lists`` are the queue lists of the app; others are known by owners, and
    where a job was seen. ``separator``, ``unacked``: kombu's ``sep``, its ``unacked_key`` and the
    index."""

    separator = DeadSet.separator  # kombu's own, where the app has no other

    def __init__(
        self,
        database: Database,
        lists: Iterable[str] = (),
        separator: str = separator,
        unacked: Sequence[str] = (),
    ) -> None:
        self.database = database
        self.lists, self.separator = frozenset(lists), separator
        self.registry, self.holdings = Registry(database), Holdings(database)
        self.queues, self.suspects = Queues(database), Suspects(database)
        self.parked = Parked(database)
        self.history, self.dead_set = History(database), DeadSet(database)
        self.runs = Runs(database)
        self.strikes = StrikeCounters(database)
        self.unacked = Unacked(database, *unacked)

    @classmethod
    def of(cls, app: Celery, client: Redis | None = None, timeout: float = 0.0) -> Inspector:
        """That of an app; by a ``client``, or by one of its own, which waits ``timeout`` seconds
        for each reply (0: as the app's options say). Raises as ``client_of`` does."""
        from .app.broker import client_of, database_of
        from .app.queues import lists_of, separator_of, unacked_of

        database = database_of(app, client or client_of(app, timeout))
        return cls(database, lists_of(app), separator_of(app), unacked_of(app))

    @staticmethod
    def check_options(app: Celery) -> None:
        """Raises ConfigError, before the server is asked."""
        from .app.broker import config_of

        config_of(app)

    @classmethod
    def at(
        cls, url: str, master: str, prefix: str, timeout: float, *, accepted: str = ""
    ) -> Inspector:
        """That of a database by its URL, without its app and without Celery; ``accepted`` as the
        option ``accepted_findings``."""
        config = Config(global_keyprefix=prefix, accepted_findings=accepted)
        return cls(Database(client_at(url, master, prefix, timeout), config))

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.client.close()

    def judged(self) -> list[tuple[Facts, int, Reason]]:
        """Every owner with its score and verdict, as one who does not watch can know it."""
        return judge_all(self.registry)

    def near(self, host: str = "") -> Iterator[tuple[Facts, float, Reason]]:
        """Owners, of a host alone if one is given, with the seconds since each was heard and the
        verdict by these and by its process: a frozen one is there, and its heart is not."""
        scores, now = self.registry.owners(), self.database.server_time()
        here = ProcessImage.current()
        owners = [owner for owner in scores if not host or owner.partition("|")[0] == host]
        known = self.registry.facts(owners)
        for owner, facts in known.items():
            age = max(0, now - scores[owner]) / 1000
            yield facts, age, judge(local_evidence(facts, here, known.values(), age))

    def refusals(
        self, lines: Iterable[str], queue_lists: Iterable[str]
    ) -> list[tuple[str, str, Exception]] | None:
        """Return line, key and error of each command, and of each queue list, that the server
        refuses to this user; None if it does not say."""
        return self.database.refusals(lines, queue_lists)

    @property
    def deadlock(self) -> tuple[str, str] | None:
        """What may stop this process for ever, and what mends it; None: nothing is known of."""
        return (DEADLOCK, DEADLOCK_FIX) if MAY_DEADLOCK else None

    def server(self) -> tuple[dict[str, Any], str | None]:
        """What the server says of itself (nothing where that is forbidden), and when it saves."""
        return info(self.database.client), setting(self.database.client, "save")

    def orphans(self) -> set[str]:
        """Owners that nobody has registered, and that have private lists. Raises
        NoPermissionError where SCAN is forbidden."""
        holders = Keyspace(self.database).holders()
        # Who has come meanwhile is known by now.
        return holders - {*self.registry.owners(), *self.registry.tombstones()}

    def unregistered(self, owner: str) -> tuple[str, int, float | None]:
        """Return of an owner that is not registered the key of its private list, how many jobs are
        there, and for how long (s) the oldest has been claimed, by its host's clock (None: it does
        not say)."""
        claims = self.holdings.lists.held(owner).claims
        since = claimed_at(claims[-1]) if claims else None
        age = None if since is None else max(0.0, time() - since)
        return self.holdings.lists.place_of(owner), len(claims), age

    def strays(self, known: Iterable[str]) -> dict[str, Stray]:
        """Queues beside those that are ``known`` on which senders have left jobs.
        Raises NoPermissionError where SCAN is forbidden."""
        queues, split = Keyspace(self.database).bound(self.separator) - {*known}, self.separator
        steps = {"".join(name.partition(split)[1:]) for name in self.lists}
        names = [f"{queue}{step}" for queue in queues for step in steps]
        idle_s = self.queues.idle_s(names)  # first: to ask for a length is a read
        strays: dict[str, Stray] = {}
        for name, (length, _) in zip(names, self.queues.lengths(names), strict=True):
            if isinstance(length, int) and length:
                jobs, before = strays.get(queue := name.partition(split)[0], Stray(0, None))
                ages = [age for age in (before, idle_s.get(name)) if age is not None]
                strays[queue] = Stray(jobs + length, min(ages, default=None))
        return strays
