"""Jobs that stock kombu's consumers have not acked, and the connections of these consumers, as both
are in Redis. ``superfetch migrate`` moves the jobs to their queues (``cli/from_stock.py``), and
the console counts them. A batch moves in one transaction: if the process dies, each job is in the
hash or in its queue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import ResponseError

from ..model.job import UNREADABLE
from .database import Database, Structure
from .wire.connections import is_ours


class Delivery(NamedTuple):
    """One entry of the hash by name, its worker's clock (s; None: not in the index) and value."""

    tag: bytes
    since: float | None
    value: bytes

    def read(self) -> tuple[bytes, str, str]:
        """Return the message, marked as redelivered, its exchange and its routing key; three empty
        values if kombu could not read it either."""
        try:
            message, exchange, routing_key = json.loads(self.value)
            with suppress(KeyError):
                for flags in message["headers"], message["properties"]["delivery_info"]:
                    flags["redelivered"] = True
        except UNREADABLE:
            return b"", "", ""
        return json.dumps(message).encode(), exchange or "", routing_key or ""


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
        return f"{who}, connected for {self.age} s, idle for {self.idle} s"


class Unacked(Structure):
    """Stock kombu's hash of unacked messages and its index by time of delivery, by their names."""

    def __init__(
        self, database: Database, name: str = "unacked", index: str = "unacked_index"
    ) -> None:
        super().__init__(database)
        # kombu's own keys: the prefix is all that is put before them.
        self.name = self.keys.queue(name)
        self.index = self.keys.queue(index)

    def consumers(self) -> list[StockConsumer] | None:
        """Return the connections to this database whose latest command is BRPOP, as a stock
        consumer's always is, except this package's; None if the ACL forbids the question."""
        try:
            rows = self.client.client_list()
        except ResponseError:  # forbidden by ACL
            return None
        db = str(self.client.connection_pool.connection_kwargs.get("db") or 0)
        return [
            StockConsumer(
                int(row["id"]), row["addr"], row["name"], int(row["age"]), int(row["idle"])
            )
            for row in rows
            if row.get("cmd") == "brpop" and row.get("db") == db and not is_ours(row)
        ]

    def size(self) -> int:
        """Return how many jobs are unacked; 0 if the server does not say."""
        try:
            return int(self.client.hlen(self.name))
        except ResponseError:  # forbidden: no worker of this user is a stock one; or another's key
            return 0

    def tags(self) -> list[bytes]:
        """Return all entries, the newest first; those that the index does not have come last."""
        there = dict.fromkeys(self.client.hkeys(self.name))
        listed = [tag for tag in self.client.zrange(self.index, 0, -1)[::-1] if tag in there]
        # kombu restores by the index alone: without a row there a job waits for ever.
        return list(dict.fromkeys([*listed, *there]))

    def read(self, tags: Sequence[bytes], client: Redis | None = None) -> list[Delivery]:
        """Return the entries of some tags, except those that were acked meanwhile."""
        client = client or self.client
        names: Any = tags
        since: Any = client.zmscore(self.index, names)
        rows = zip(tags, since, client.hmget(self.name, tags), strict=True)
        return [Delivery(*row) for row in rows if row[-1] is not None]

    def move(self, jobs: Mapping[Delivery, tuple[bytes, Mapping[str, int]]]) -> list[Delivery]:
        """Move jobs to the front of their queue lists in one transaction; return those that were
        moved: a job that was acked or delivered again since it was read stays. If stock workers
        change the hash meanwhile, the transaction is tried again.

        Args:
            jobs: delivery (the newest first) -> its message, and queue list -> ms of its x-expires.
        """

        def transaction(pipe: Any) -> list[Delivery]:
            same = [job for job in self.read([job.tag for job in jobs], pipe) if job in jobs]
            pipe.multi()
            for job in same:
                message, lists = jobs[job]
                pipe.hdel(self.name, job.tag)
                pipe.zrem(self.index, job.tag)
                for queue_list, expires in lists.items():
                    pipe.rpush(self.keys.queue(queue_list), message)
                    if expires:
                        pipe.pexpire(self.keys.queue(queue_list), expires)
            return same

        moved = self.client.transaction(
            transaction, self.name, self.index, value_from_callable=True
        )
        return list(moved)
