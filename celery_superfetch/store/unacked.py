"""What stock kombu leaves in Redis: the jobs that its workers have not acked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..model.job import digest
from .database import Database, Structure
from .wire.scripts import Call

_decoder = json.JSONDecoder()


class Delivery(NamedTuple):
    """One entry of the hash by name; ``since`` is the worker's clock (s), 0 where unknown."""

    tag: bytes
    since: float


@dataclass(frozen=True)
class StockJob:
    """A job that was delivered by stock kombu and not acked."""

    delivery: Delivery
    #: What kombu wrote: a JSON list of the message, its exchange and its routing key.
    value: bytes
    #: Where in ``value`` the message stands.
    start: int
    end: int
    message: dict[str, Any]
    exchange: str
    routing_key: str

    @property
    def payload(self) -> bytes:
        """The message's bytes as kombu wrote them; for a kombu producer those it had pushed."""
        return self.value[self.start : self.end]

    @classmethod
    def parse(cls, delivery: Delivery, value: bytes) -> StockJob | None:
        """Read an entry; None where kombu could make nothing of it either."""
        try:
            text = value.decode()
            start = text.index("[") + 1
            message, end = _decoder.raw_decode(text, start)
            _, exchange, routing_key = json.loads(text)
            message["properties"]["delivery_tag"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        start, end = len(text[:start].encode()), len(text[:end].encode())
        return cls(delivery, value, start, end, message, exchange or "", routing_key or "")


class Unacked(Structure):
    """Stock kombu's hash of unacked messages and its index by time of delivery.

    Arguments:
        name: kombu's ``unacked_key``.
        index: kombu's ``unacked_index_key``.
    """

    def __init__(self, database: Database, name: str, index: str) -> None:
        super().__init__(database)
        # kombu's own keys: the prefix is all that is put before them.
        self.name = self.keys.queue(name)
        self.index = self.keys.queue(index)

    def deliveries(self) -> list[Delivery]:
        """All entries, the newest first; those that the index does not know last."""
        rows: Any = self.client.zrange(self.index, 0, -1, desc=True, withscores=True)
        known = {tag: float(score) for tag, score in rows}
        names: Any = self.client.hkeys(self.name)
        there = set(names)
        listed = [Delivery(tag, since) for tag, since in known.items() if tag in there]
        # kombu restores by the index alone: without a row there a job waits for ever.
        return listed + [Delivery(tag, 0.0) for tag in names if tag not in known]

    def read(self, deliveries: Sequence[Delivery]) -> list[bytes | None]:
        """The values of some entries; None for one that was acked meanwhile."""
        values: Any = self.client.hmget(self.name, [delivery.tag for delivery in deliveries])
        return list(values)

    def take(self, jobs: Sequence[tuple[StockJob, Mapping[str, int]]]) -> Call:
        """The call that moves jobs to their queues; a reply for each, see ``migrate.lua``.

        Arguments:
            jobs: the newest delivery first, each with its queue lists -> ms of their x-expires.
        """
        keys = self.keys
        lists: dict[str, int] = {}
        for _, targets in jobs:
            lists.update(targets)
        number = {name: at for at, name in enumerate(lists, 1)}
        args: list[Any] = [int(self.config.strike_window), len(lists), *lists.values()]
        for job, targets in jobs:
            seen = digest(job.value)
            # Lua counts from 1 and includes the last byte.
            args += [job.delivery.tag, repr(job.delivery.since), seen, job.start + 1, job.end]
            args += [len(targets), *(number[name] for name in targets)]
        return Call(
            "migrate",
            [
                self.name,
                self.index,
                keys.recovered,
                keys.stats,
                *(keys.queue(name) for name in lists),
                *(keys.recoveries(digest(job.payload)) for job, _ in jobs),
            ],
            args,
        )
