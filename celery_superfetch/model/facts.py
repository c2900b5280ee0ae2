"""The owner record (``Facts``), and its form in Redis.

An owner writes its record when it registers, and changes of it with its heartbeats. Reapers, other
workers and the console read it. If the owner dies, its record stays until a reaper has taken back
its jobs.
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
TEXTS = "app", "node", "version", "tasks", "state", "run_id", "group"  # fields that are text
OTHERS = (  # fields that are JSON
    "heartbeat_interval",
    "owner_ttl",
    "connections",
    "pool",
    "lists",
    "unconsumed",
    "started_jobs",
    "stopping_since",
)
SCHEMA = "2"  # of the layout of the data in Redis (docs/reference/redis_data.md)
HUNG = "hung"  # state of an owner whose event loop does not turn: it is declared dead
STOPPING = "stopping"  # state of an owner that was told to stop
SILENT = "silent"  # shown as the state of a living owner that missed two heartbeats; never stored


@dataclass(frozen=True)
class Facts:
    """One owner's row in the registry. Durations are seconds, times server ms."""

    owner: str
    process: ProcessImage
    heartbeat_interval: float
    owner_ttl: float
    app: str = ""
    node: str = ""  # Celery's name of the worker; empty outside Celery
    version: str = ""  # of this package; empty: one that did not write it yet
    tasks: str = ""  # digest of the names of its tasks; empty: outside Celery, or as for version
    state: str = "running"
    run_id: str = ""  # of the server whose ids ``connections`` has; empty: those cannot be used
    connections: tuple[int, ...] = ()
    pool: tuple[tuple[int, str], ...] = ()  # pool processes as ``(pid, start time)``
    #: Queue list -> ms of its x-expires (0: none), each registered before its first claim.
    lists: Mapping[str, int] = field(default_factory=dict)
    #: Those of ``lists`` from which it does not claim now: their consumers were cancelled.
    unconsumed: tuple[str, ...] = ()
    group: str = ""  # of the owners that serve the same queue lists; empty: it serves none
    #: What runs for longer than a heartbeat interval: number of its claim, and when it started (by
    #: the clock of the owner's host, s).
    started_jobs: tuple[tuple[int, int], ...] = ()
    stopping_since: int = 0  # server ms at which it was told to stop; 0: it was not
    registered_at: int = 0
    was: str = ""  # the state before it was marked reaped
    ran: int = 0  # how many of its jobs ran then
    schema: str = SCHEMA

    @classmethod
    def mine(cls, owner: str, process: ProcessImage, config: Config) -> Facts:
        times = config.heartbeat_interval, config.owner_ttl
        return cls(owner, process, *times, config.app_name, version=__version__)

    def with_(self, **changes: Any) -> Facts:
        return replace(self, **changes)

    def dump(self) -> dict[str, str]:
        """Fields of the hash; ``registered_at``, ``was`` and ``ran`` are the server's to write."""
        return {
            "schema": SCHEMA,  # a reader skips what it does not know
            **{name: str(value) for name, value in vars(self.process).items()},
            **{name: getattr(self, name) for name in TEXTS},
            **{name: json.dumps(getattr(self, name)) for name in OTHERS},
        }

    @classmethod
    def load(cls, owner: str, row: Mapping[bytes, bytes], config: Config) -> Facts:
        """Read a row, of another version or half a one perhaps, which must never stop a pass:
        what is missing or broken falls back to the reader's own settings."""
        text = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in row.items()}

        def rows(name: str, length: int) -> list[Any]:
            items = parsed_json(text.get(name), list[Any]())
            return [row for row in items if isinstance(row, list) and len(row) == length]

        host, _, rest = owner.partition("|")
        pid = rest.partition("|")[0]
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
            **{name: text[name] for name in (*TEXTS, "was") if name in text},
            connections=tuple(
                whole(item) for item in parsed_json(text.get("connections"), list[Any]())
            ),
            pool=tuple((whole(pid), str(started)) for pid, started in rows("pool", 2)),
            # Half a character is JSON, but no key's name.
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
            ran=whole(text.get("ran")),
            schema=text.get("schema", SCHEMA),
        )
