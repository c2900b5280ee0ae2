"""The connections of a server, each with a name: a plan is sold by their number."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import redis

#: What connections are there for.
BLOCKING, BROADCASTS, HEARTBEAT = "blocking read", "broadcasts", "heartbeat"
CHANGES, BRPOP, COMMANDS = "word of changes", "queues without acks", "commands"


def open_connections(client: redis.Redis, db: int = 0) -> Counter[str]:
    """Count the connections to one database by duty; the one that asks is left out."""
    own, registered = client.client_id(), _registered(client)
    rows = [row for row in client.client_list() if int(row["db"]) == db]
    return Counter(_duty(row, registered) for row in rows if int(row["id"]) != own)


def _duty(row: dict[str, Any], registered: set[int]) -> str:
    command, flags = str(row["cmd"]).partition("|")[0], str(row["flags"])
    if int(row["psub"]):
        return BROADCASTS
    if "t" in flags or command == "exists":  # it is told of lists, or looks at them
        return CHANGES
    if command in ("blmove", "brpop"):
        return BLOCKING if command == "blmove" else BRPOP
    return HEARTBEAT if int(row["id"]) in registered else COMMANDS


def _registered(client: redis.Redis) -> set[int]:
    """The ids that owners have registered: those of their heartbeats and of blocking reads."""
    ids: set[int] = set()
    for key in client.scan_iter("*superfetch:owner:*"):
        raw: Any = client.hget(key, "connections")
        ids.update(json.loads(raw or "[]"))
    return ids
