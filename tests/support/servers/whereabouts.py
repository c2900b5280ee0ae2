"""Where the jobs of a database are: in queues, in flight, parked, on probation, dead, or in two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import redis

from celery_superfetch.model.dead_job import DeadJob


def content(client: redis.Redis) -> dict[bytes, Any]:
    """Everything in the database."""
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"list": lambda key: client.lrange(key, 0, -1),
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"string": client.get,
    }
    kinds: dict[bytes, Any] = {key: client.type(key) for key in client.scan_iter()}
    return {key: read[kind](key) for key, kind in kinds.items()}


def places(found: dict[bytes, Any], raw: bytes) -> list[bytes]:
    """Where a job is, by the keys; once for each copy."""

    def jobs(key: bytes, value: Any) -> Iterator[bytes]:
        if b"superfetch:parked:" in key and value and isinstance(value[0], tuple):
            yield from (member.partition(b"\n")[2] for member, _ in value)
        elif isinstance(value, list):
            yield from value
        elif isinstance(value, dict):
            if key.endswith(b"dead:jobs"):
                dead = [record for record in value.values() if record != b"?"]
                yield from (DeadJob.load("", record, 0).payload for record in dead)
            else:
                values = value.values()
                yield from (
                    one[1 : 1 + len(raw)] if key.endswith(b"unacked") else one for one in values
                )

    return [key for key, value in found.items() for job in jobs(key, value) if job == raw]
