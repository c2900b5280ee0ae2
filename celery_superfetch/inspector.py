"""Read access to an app's database: owners, jobs, queues, the dead set, the server.

The console reads Redis by this class, and by nothing else of the core: `status`, `jobs`, `check`,
`doctor`, the page and the metrics. Its own methods only read: a process that dies in one leaves
nothing behind. Changes by operators go through its parts ``paused``, ``audit``, ``bulk_ids``,
``dead_set`` (the page deletes) and ``registry`` (`queue forget`), whose modules say what a death
leaves. In its views a key of another type counts as empty (``Database.for_reading``);
``key_types`` finds such keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .migration.stock_unacked import Unacked
from .model.config import Config
from .model.job import claimed_at
from .model.owner_record import OwnerRecord
from .model.process import ProcessImage
from .model.verdict import Reason, judge
from .reaper.evidence import judge_all, local_evidence
from .store.audit_list import (
    COMPLETE,
    INTERRUPTED,
    UNDER_WAY,
    AuditEntry,
    AuditList,
    AuditRecord,
)
from .store.bulk_ids import BulkIds
from .store.database import Database
from .store.dead_set import DeadSetStore
from .store.in_flight_jobs import (
    PARKED,
    PROBATION,
    RESERVED,
    RUNNING,
    STATES,
    WAITING,
    InFlightCounts,
    InFlightJobs,
    JobPlace,
    SeenClaim,
    SeenJob,
)
from .store.job_search import DeadSearch, JobSearch, Search, Sought
from .store.key_types import KeyTypes
from .store.keyspace import Keyspace
from .store.memory_use import MemoryUse
from .store.minutes import (
    COUNTED,
    ONE_MINUTE,
    SERIES_MAX,
    SLOTS,
    TEN_MINUTES,
    WAITING_JOBS,
    Minutes,
    Row,
    Series,
)
from .store.owner_registry import OwnerRegistry
from .store.parked_jobs import ParkedJobs
from .store.paused_queues import Pause, PausedQueues
from .store.queues import Queues, Suspects
from .store.redis.server import DEADLOCK, DEADLOCK_FIX, MAY_DEADLOCK, info, setting
from .store.redis.trouble import advice_for, trouble_of
from .store.redis.urls import client_at
from .store.runs import Runs, RunSums
from .store.stats import Counts, Stats
from .store.strike_counters import StrikeCounters

if TYPE_CHECKING:  # a probe waits for neither
    from celery import Celery
    from redis import Redis

__all__ = ["READER_TIMEOUT_S", "STATES", "Counts", "InFlightCounts", "Inspector", "JobPlace"]
__all__ += ["RunSums"]
__all__ += ["DeadSearch", "Pause", "Search", "SeenClaim", "SeenJob", "Sought"]
__all__ += ["advice_for", "trouble_of"]
__all__ += ["COMPLETE", "INTERRUPTED", "UNDER_WAY", "AuditEntry", "AuditRecord"]
__all__ += ["PARKED", "PROBATION", "RESERVED", "RUNNING", "WAITING"]
__all__ += ["COUNTED", "ONE_MINUTE", "SERIES_MAX", "SLOTS", "TEN_MINUTES", "WAITING_JOBS"]
__all__ += ["Row", "Series"]

#: Seconds for which a reader waits for the server. Prometheus gives a scrape ten by default.
READER_TIMEOUT_S = 5.0


class Stray(NamedTuple):
    """Jobs on a queue that no owner has served."""

    jobs: int
    #: Seconds for which no job came or went, if the server says it: each job is at least as old.
    idle_s: int | None


class Inspector:
    """A reader of one database.

    Arguments:
        lists: the queue lists of the app. Those of its owners, and lists with jobs, are found in
            Redis.
        unacked: kombu's ``unacked_key``, and the key of its index.
    """

    def __init__(
        self,
        database: Database,
        lists: Iterable[str] = (),
        unacked: Sequence[str] = (),
    ) -> None:
        self.database = database = database.for_reading()
        self.lists = frozenset(lists)
        self.registry, self.in_flight_jobs = OwnerRegistry(database), InFlightJobs(database)
        self.queues, self.suspects = Queues(database), Suspects(database)
        self.parked, self.paused = ParkedJobs(database), PausedQueues(database)
        self.stats, self.dead_set = Stats(database), DeadSetStore(database)
        self.runs, self.minutes = Runs(database), Minutes(database)
        self.strikes = StrikeCounters(database)
        self.search, self.memory = JobSearch(database), MemoryUse(database)
        self.audit, self.bulk_ids = AuditList(database), BulkIds(database)
        self.unacked, self.key_types = Unacked(database, *unacked), KeyTypes(database)

    @classmethod
    def of(cls, app: Celery, client: Redis | None = None, timeout: float = 0.0) -> Inspector:
        """Make the inspector of an app, with a ``client``, or with a client of its own that waits
        ``timeout`` seconds for each reply (0: as the app's options say). Raises as ``client_of``
        does."""
        from .app.broker import client_of, database_of
        from .app.queues import lists_of, unacked_of

        database = database_of(app, client or client_of(app, timeout))
        return cls(database, lists_of(app), unacked_of(app))

    @staticmethod
    def check_options(app: Celery) -> None:
        """Check an app's options without a command to the server; ConfigError."""
        from .app.broker import config_of

        config_of(app)

    @classmethod
    def at(
        cls, url: str, master: str, prefix: str, timeout: float, *, accepted: str = ""
    ) -> Inspector:
        """Make the inspector of a database by its URL, without its app and without Celery.
        ``accepted``: the option ``accepted_findings``."""
        # All priorities that kombu has: only the app knows which of them it uses as steps.
        config = Config(
            global_keyprefix=prefix, accepted_findings=accepted, priority_steps=range(10)
        )
        return cls(Database(client_at(url, master, prefix, timeout), config))

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.client.close()

    def judged(self) -> list[tuple[OwnerRecord, int, Reason]]:
        """Return every owner with its score and verdict, from one look: without watching, no owner
        is dead by its staleness."""
        return judge_all(self.registry)

    def near(self, host: str = "") -> Iterator[tuple[OwnerRecord, float, Reason]]:
        """Yield owners (of ``host`` alone, if it is not empty), the seconds since the last
        heartbeat, and the verdict by these seconds and by the process: a frozen process exists, and
        sends no heartbeat."""
        scores, now = self.registry.owners(), self.database.server_time()
        here = ProcessImage.current()
        owners = [owner for owner in scores if not host or owner.partition("|")[0] == host]
        known = self.registry.records(owners)
        for owner, record in known.items():
            age = max(0, now - scores[owner]) / 1000
            yield record, age, judge(local_evidence(record, here, known.values(), age))

    def refusals(
        self, lines: Iterable[str], queue_lists: Iterable[str]
    ) -> list[tuple[str, str, Exception]] | None:
        """Return line, key and error of each command, and of each queue list, that the server
        refuses to this user; None if it does not say."""
        return self.database.refusals(lines, queue_lists)

    @property
    def deadlock(self) -> tuple[str, str] | None:
        """A known fault that may stop this process for ever, and its fix; None: it has none."""
        return (DEADLOCK, DEADLOCK_FIX) if MAY_DEADLOCK else None

    def server(self) -> tuple[dict[str, Any], str | None]:
        """Return the server's INFO (empty where it is forbidden), and its setting ``save``."""
        return info(self.database.client), setting(self.database.client, "save")

    def orphans(self) -> set[str]:
        """Return owners that have private lists and no owner record. Raises NoPermissionError where
        SCAN is forbidden."""
        holders = Keyspace(self.database).holders()
        # Read after the scan: an owner that joined during it is registered by now.
        return holders - {*self.registry.owners(), *self.registry.tombstones()}

    def unregistered(self, owner: str) -> tuple[str, int, float | None]:
        """Return the key of an unregistered owner's private list, the number of jobs in it, and the
        seconds since its oldest claim, by its host's clock (None: its name does not say)."""
        claims = self.in_flight_jobs.lists.held(owner).claims
        since = claimed_at(claims[-1]) if claims else None
        age = None if since is None else max(0.0, time() - since)
        return self.in_flight_jobs.lists.place_of(owner), len(claims), age

    def strays(self, known: Iterable[str]) -> dict[str, Stray]:
        """Return queues other than those that are ``known`` on which senders have left jobs.
        Raises NoPermissionError where SCAN is forbidden."""
        known, queue_of = {*known}, self.database.queue_of
        found = Keyspace(self.database).bound_lists(self.lists)
        names = [name for name in found if queue_of(name) not in known]
        idle_s = self.queues.idle_s(names)  # first: to ask for a length is a read
        strays: dict[str, Stray] = {}
        for name, (length, _) in zip(names, self.queues.lengths(names), strict=True):
            if isinstance(length, int) and length:
                jobs, before = strays.get(queue := queue_of(name), Stray(0, None))
                ages = [age for age in (before, idle_s.get(name)) if age is not None]
                strays[queue] = Stray(jobs + length, min(ages, default=None))
        return strays
