"""Who consumes from this database as stock kombu does, and may hold unacked jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from .lib_name import is_ours


@dataclass(frozen=True)
class StockConsumer:
    """A connection on which somebody consumes as stock kombu does."""

    id: int
    address: str
    name: str
    #: Seconds since it connected, and since it last sent a command.
    age: int
    idle: int

    def __str__(self) -> str:
        name = f" ({self.name})" if self.name else ""
        times = f"connected for {self.age} s, idle for {self.idle} s"
        return f"id {self.id}: {self.address}{name}, {times}"


def stock_consumers(client: Redis) -> list[StockConsumer] | None:
    """Connections to this database whose latest command is BRPOP; None where we may not ask.

    A stock consumer keeps one connection for nothing but BRPOP, from its first wait for jobs to
    its end: also while its prefetch is full, and in a warm shutdown until the last job is done.
    So does whoever waits for a reply: of those our own workers' are known by their name.
    """
    try:
        rows: Any = client.client_list()
    except ResponseError:  # forbidden by ACL
        return None
    db = str(client.connection_pool.connection_kwargs.get("db") or 0)
    return [
        StockConsumer(
            int(row["id"]),
            row.get("addr", ""),
            row.get("name", ""),
            int(row.get("age", 0)),
            int(row.get("idle", 0)),
        )
        for row in rows
        if row.get("cmd") == "brpop" and row.get("db") == db and not is_ours(row)
    ]
