"""The owner record (``OwnerRecord``), and its form in Redis: a hash.

An *owner* is the part of a process that claims jobs in one database, mostly of a worker. It writes
its record when it registers (``store/owner_registry.py``), and what has changed in it with its
heartbeats (``owner/heartbeat.py``). Reapers, other workers and the console read it. If the owner
dies, its record stays until a reaper has marked it *reaped* (declared dead: it can claim no more)
and has put its jobs back on their queues; the reaper then removes it from the list of owners.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .config import Config
from .process import ProcessImage
from .records import parsed_json, real, text_of, whole
from .version import __version__

RETRY_INTERVAL = 1.0  # seconds between two tries while heartbeats fail
RECORD_TEXTS = (  # fields that are text
    *("app", "node", "version", "tasks", "state", "run_id", "group"),
    "pool_name",
)
RECORD_JSON = (  # fields that are JSON
    "heartbeat_interval",
    "owner_ttl",
    "connections",
    "pool",
    "slots",
    "memory",
    "lists",
    "unconsumed",
    "started_jobs",
    "stopping_since",
)
#: Bytes by which an owner's memory must have changed to be written again: heartbeats send what has
#: changed.
MEMORY_STEP = 16 * 2**20
SCHEMA = "2"  # version of the layout of the data in Redis (docs/reference/redis_data.md)
#: State of an owner whose event loop does not turn. Its heartbeat thread writes it, and reapers
#: then declare the owner dead.
HUNG = "hung"
STOPPING = "stopping"  # state of an owner that was told to stop
SILENT = "silent"  # shown as the state of a living owner that missed two heartbeats; never stored


@dataclass(frozen=True)
class OwnerRecord:
    """One owner's record. Durations are in seconds, times in server ms, except in
    ``started_jobs``."""

    owner: str
    process: ProcessImage
    heartbeat_interval: float
    owner_ttl: float
    app: str = ""
    node: str = ""  # Celery's name of the worker; empty outside Celery
    version: str = ""  # of this package; empty: a version that did not write it yet
    #: Digest of the names of its tasks; empty: outside Celery, or a version that did not write it.
    tasks: str = ""
    state: str = "running"
    #: Run id of the Redis server that gave the client ids in ``connections``; empty: the ids cannot
    #: be used.
    run_id: str = ""
    connections: tuple[int, ...] = ()
    pool: tuple[tuple[int, str], ...] = ()  # pool processes as ``(pid, start time)``
    pool_name: str = ""  # the kind of its pool; empty: outside Celery, or not written yet
    slots: int = 0  # jobs that can run at once; 0: as ``pool_name``
    #: Bytes of memory (RSS) of its process and its pool's, in steps of ``MEMORY_STEP``; a page that
    #: several of them share counts in each. 0: not measured yet.
    memory: int = 0
    #: Queue list -> ms of its x-expires (0: none), each registered before its first claim.
    lists: Mapping[str, int] = field(default_factory=dict)
    #: Those of ``lists`` from which it does not claim now: their consumers were cancelled.
    unconsumed: tuple[str, ...] = ()
    #: Digest by which owners that serve the same queue lists form a group; empty: it serves none.
    group: str = ""
    #: Its jobs that have run for longer than a heartbeat interval: the number of the claim
    #: (``model/job.py``), and when the job started (by the clock of the owner's host, s).
    started_jobs: tuple[tuple[int, int], ...] = ()
    stopping_since: int = 0  # server ms at which it was told to stop; 0: it was not
    registered_at: int = 0
    state_before_reap: str = ""  # its state before a reaper marked it reaped
    ran_at_reap: int = 0  # how many of its jobs ran when it was marked reaped
    schema: str = SCHEMA

    @classmethod
    def of_process(cls, owner: str, process: ProcessImage, config: Config) -> OwnerRecord:
        times = config.heartbeat_interval, config.owner_ttl
        return cls(owner, process, *times, config.app_name, version=__version__)

    def with_(self, **changes: Any) -> OwnerRecord:
        return replace(self, **changes)

    def dump(self) -> dict[str, str]:
        """Return the fields of the hash that the owner writes. Scripts write ``registered_at``,
        ``state_before_reap`` and ``ran_at_reap``."""
        return {
            "schema": SCHEMA,  # a reaper warns of an owner with another one
            **{name: str(value) for name, value in vars(self.process).items()},
            **{name: getattr(self, name) for name in RECORD_TEXTS},
            **{name: json.dumps(getattr(self, name)) for name in RECORD_JSON},
        }

    @classmethod
    def load(cls, owner: str, row: Mapping[bytes, bytes], config: Config) -> OwnerRecord:
        """Read a record. It may be of another version, or have lost fields, and must never stop a
        pass of the reaper over all owners. A broken interval becomes that of the reader's own
        settings; any other field that is missing or broken gets its default."""
        text = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in row.items()}

        def rows(name: str, length: int) -> list[Any]:
            items = parsed_json(text.get(name), list[Any]())
            return [row for row in items if isinstance(row, list) and len(row) == length]

        host, _, pid_and_nonce = owner.partition("|")
        pid = pid_and_nonce.partition("|")[0]
        interval = real(text.get("heartbeat_interval"))
        ttl = real(text.get("owner_ttl"))
        return cls(
            owner=owner,
            process=ProcessImage(
                text.get("host", host),
                whole(text.get("pid", pid)),
                *(text.get(n, "") for n in ("start_time", "boot_id", "pid_namespace", "image")),
            ),
            heartbeat_interval=interval if interval > 0 else config.heartbeat_interval,
            owner_ttl=ttl if ttl > 0 else config.owner_ttl,
            **{name: text[name] for name in (*RECORD_TEXTS, "state_before_reap") if name in text},
            connections=tuple(
                whole(item) for item in parsed_json(text.get("connections"), list[Any]())
            ),
            pool=tuple((whole(pid), str(started)) for pid, started in rows("pool", 2)),
            slots=max(0, whole(text.get("slots"))),
            memory=max(0, whole(text.get("memory"))),
            # JSON may have half of a surrogate pair, which is no text for the name of a key.
            lists={
                text_of(name): max(0, whole(expires))
                for name, expires in parsed_json(text.get("lists"), dict[str, Any]()).items()
            },
            unconsumed=tuple(
                text_of(name)
                for name in parsed_json(text.get("unconsumed"), list[Any]())
                if isinstance(name, str)
            ),
            started_jobs=tuple(
                (whole(number), whole(at)) for number, at in rows("started_jobs", 2)
            ),
            stopping_since=whole(text.get("stopping_since")),
            registered_at=whole(text.get("registered_at")),
            ran_at_reap=whole(text.get("ran_at_reap")),
            schema=text.get("schema", SCHEMA),
        )
