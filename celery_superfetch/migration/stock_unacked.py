"""Jobs that consumers of kombu's own Redis transport ("stock" kombu) have not acked, and the
connections of these consumers.

`superfetch migrate` (``from_stock.py``), a command in its own process, moves the jobs from
kombu's hash of unacked messages to their queues. The console counts them (``size``); its overview
and `doctor` ask for ``consumers``.

A batch of jobs moves in one script: if the process dies, each job is in the hash or on its queue,
and a second `migrate` moves the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from ..model.humanize import span
from ..model.job import UNREADABLE, digest
from ..store.database import Database, Structure
from ..store.redis.connections import is_own_connection
from ..store.redis.server import is_temporary


class Moved(IntEnum):
    """The outcome of the move of one job (``migrate.lua``)."""

    CHANGED = 0  # it was acked, or delivered again, since it was read
    YES = 1
    NO_QUEUE = 2  # it stays: one of its queue lists has become a key of another type


class UnackedEntry(NamedTuple):
    """One entry of kombu's hash of unacked messages."""

    tag: bytes  # kombu's delivery tag: the field of the hash
    since: float | None  # time of delivery (s, by the worker's clock); None: not in the index
    value: bytes  # JSON of the message, its exchange and its routing key

    def read(self) -> tuple[bytes, str, str]:
        """Return the message, marked as redelivered, its exchange and its routing key; three empty
        values if the entry is malformed."""
        try:
            message, exchange, routing_key = json.loads(self.value)
            with suppress(KeyError):
                for flags in message["headers"], message["properties"]["delivery_info"]:
                    flags["redelivered"] = True
            payload = json.dumps(message).encode()
        except UNREADABLE:
            return b"", "", ""
        # A number is the name of a queue to kombu, too; a list or a dictionary is none.
        if any(isinstance(name, (list, dict)) for name in (exchange, routing_key)):
            return b"", "", ""
        return payload, _name(exchange), _name(routing_key)


def _name(value: Any) -> str:
    return str(value) if value else ""


@dataclass(frozen=True)
class StockConsumer:
    """A connection of a stock kombu consumer."""

    id: int
    address: str
    name: str
    age: int  # s since it connected
    idle: int  # s since it last sent a command

    def __str__(self) -> str:
        who = f"id {self.id}: {self.address}" + (f" ({self.name})" if self.name else "")
        return f"{who}, connected for {span(self.age)}, idle for {span(self.idle)}"


class Unacked(Structure):
    """Stock kombu's hash of unacked messages, and its index by time of delivery.

    Arguments:
        name: kombu's option ``unacked_key``, the hash.
        index: kombu's option ``unacked_index_key``, the index.
    """

    def __init__(
        self, database: Database, name: str = "unacked", index: str = "unacked_index"
    ) -> None:
        super().__init__(database)
        # These are kombu's own keys: they have the prefix, and no ``superfetch:``.
        self.name = self.keys.queue(name)
        self.index = self.keys.queue(index)

    def consumers(self) -> list[StockConsumer] | None:
        """Return the connections to this database whose latest command is BRPOP, except those of
        this package: a stock consumer's connection sends nothing else. None: the ACL forbids CLIENT
        LIST. Raises ResponseError if the server refuses it only now (BUSY)."""
        try:
            rows = self.client.client_list()
        except ResponseError as exc:
            if is_temporary(exc):
                raise
            return None
        db = str(self.client.connection_pool.connection_kwargs.get("db") or 0)
        return [
            StockConsumer(
                int(row["id"]), row["addr"], row["name"], int(row["age"]), int(row["idle"])
            )
            for row in rows
            if row.get("cmd") == "brpop" and row.get("db") == db and not is_own_connection(row)
        ]

    def size(self) -> int:
        """Return how many jobs are unacked; 0 if the server does not say. Raises ResponseError if
        the server refuses to say it only now (BUSY)."""
        try:
            return int(self.client.hlen(self.name))
        except ResponseError as exc:
            if is_temporary(exc):
                raise
            # Either the ACL forbids the key, and then this user runs no stock worker. Or the key is
            # no hash, and then it is not kombu's.
            return 0

    def tags(self) -> list[bytes]:
        """Return the tags of all entries, the newest first; those that are not in the index come
        last. kombu restores by the index alone, so that these would stay in the hash for ever."""
        there = dict.fromkeys(self.client.hkeys(self.name))
        listed = [tag for tag in self.client.zrange(self.index, 0, -1)[::-1] if tag in there]
        return list(dict.fromkeys([*listed, *there]))

    def read(self, tags: Sequence[bytes]) -> list[UnackedEntry]:
        """Return the entries with these tags (one at least), except those that were acked
        meanwhile."""
        names: Any = tags
        since: Any = self.client.zmscore(self.index, names)
        rows = zip(tags, since, self.client.hmget(self.name, tags), strict=True)
        return [UnackedEntry(*row) for row in rows if row[-1] is not None]

    def move(
        self, jobs: Mapping[UnackedEntry, tuple[bytes, Mapping[str, int]]]
    ) -> dict[UnackedEntry, Moved]:
        """Move jobs to the front of their queue lists in one script; return the outcome of each. If
        the server refuses the script, the jobs stay in the hash: in a transaction (MULTI), a
        refused push would not undo the removal of its job.

        Arguments:
            jobs: entry (the newest first) -> its message, and queue list -> ms of its x-expires.
                Each has one queue list at least, or the job would be gone; a message of a fanout
                or topic exchange may have several.
        """
        queue_lists = list(dict.fromkeys(name for _, lists in jobs.values() for name in lists))
        number_of = {name: number for number, name in enumerate(queue_lists, 1)}
        args: list[Any] = []
        for job, (message, lists) in jobs.items():
            since = "" if job.since is None else repr(job.since)
            args += [job.tag, since, digest(job.value), message, len(lists)]
            for name, expires in lists.items():
                args += [number_of[name], expires]
        keys = [self.name, self.index, *map(self.keys.queue, queue_lists)]
        outcomes = self.scripts.run("migrate", keys, args)
        return dict(zip(jobs, map(Moved, outcomes), strict=True))
