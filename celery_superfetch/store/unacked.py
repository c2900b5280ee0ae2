"""What stock kombu leaves in Redis: jobs that its consumers have not acked, and who these are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from ..model.job import UNREADABLE, digest
from .database import Database, Structure
from .wire.connections import is_ours
from .wire.scripts import Call


class Delivery(NamedTuple):
    """One entry of the hash by name; ``since`` is the worker's clock (s), 0 where unknown."""

    tag: bytes
    since: float


class StockJob(NamedTuple):
    """A job that was delivered by stock kombu and not acked."""

    delivery: Delivery
    value: bytes  # as kombu wrote it: a JSON list of the message, its exchange and routing key
    payload: bytes = b""  # the message in it; empty where kombu could make nothing of it either
    exchange: str = ""
    routing_key: str = ""

    @classmethod
    def parse(cls, delivery: Delivery, value: bytes) -> StockJob:
        try:
            text = value.decode()
            start = text.index("[") + 1
            _, end = json.JSONDecoder().raw_decode(text, start)
            _, exchange, routing_key = json.loads(text)
        except UNREADABLE:
            return cls(delivery, value)
        return cls(delivery, value, text[start:end].encode(), exchange or "", routing_key or "")


@dataclass(frozen=True)
class StockConsumer:
    """A connection on which somebody consumes as stock kombu does."""

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

    def __init__(self, database: Database, name: str, index: str) -> None:
        super().__init__(database)
        # kombu's own keys: the prefix is all that is put before them.
        self.name = self.keys.queue(name)
        self.index = self.keys.queue(index)

    def consumers(self) -> list[StockConsumer] | None:
        """Connections to this database whose latest command is BRPOP, as a stock consumer's is to
        its very end, but for ours; None where we may not ask."""
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
        return int(self.client.hlen(self.name))

    def deliveries(self) -> list[Delivery]:
        """All entries, the newest first; those that the index does not know last."""
        rows = self.client.zrange(self.index, 0, -1, desc=True, withscores=True)
        names = self.client.hkeys(self.name)
        known, there = dict(rows), set(names)
        listed = [Delivery(tag, float(since)) for tag, since in rows if tag in there]
        # kombu restores by the index alone: without a row there a job waits for ever.
        return listed + [Delivery(tag, 0.0) for tag in names if tag not in known]

    def read(self, deliveries: Sequence[Delivery]) -> list[StockJob]:
        """Those of some jobs that were not acked meanwhile."""
        values = self.client.hmget(self.name, [delivery.tag for delivery in deliveries])
        pairs = zip(deliveries, values, strict=True)
        return [StockJob.parse(delivery, value) for delivery, value in pairs if value is not None]

    def move(self, jobs: Sequence[tuple[StockJob, Mapping[str, int]]]) -> list[bytes]:
        return list(self.scripts.run(*self.take(jobs)))

    def take(self, jobs: Sequence[tuple[StockJob, Mapping[str, int]]]) -> Call:
        """The call that moves jobs (the newest delivery first) to their queue lists -> ms of
        x-expires; a reply for each, see ``migrate.lua``."""
        keys, lists = self.keys, {name: ms for _, targets in jobs for name, ms in targets.items()}
        number = {name: at for at, name in enumerate(lists, 1)}
        args: list[Any] = [int(self.config.strike_window), len(lists), *lists.values()]
        for (delivery, value, payload, *_), targets in jobs:
            before = value.index(payload)
            # Lua counts from 1 and includes the last byte.
            args += [*delivery, digest(value), before + 1, before + len(payload)]
            args += [len(targets), *map(number.__getitem__, targets)]
        names = [self.name, self.index, keys.recovered, keys.stats, *map(keys.queue, lists)]
        names += [keys.recoveries(digest(job.payload)) for job, _ in jobs]
        return Call("migrate", names, args)
