"""Commands that clients have sent, as the server counts them."""

from __future__ import annotations

import redis

from support.servers.server import Server

STOCK = "redis"
OURS = "celery_superfetch:Transport"

#: What each sends for jobs. The server counts what a script calls as well, so no other may be. (No
#: script that a consumer runs without a fault calls HDEL.)
SENT = {
    OURS: ("evalsha", "eval", "blmove", "hdel"),
    STOCK: ("multi", "exec", "brpop", "zadd", "zrem", "hset", "hdel", "hget"),
}


def calls(client: redis.Redis, *names: str) -> int:
    """How often these were called since the server's statistics were reset."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names)


def blocked(client: redis.Redis) -> int:
    """How many clients wait in a blocking command."""
    return int(client.info("clients")["blocked_clients"])


def commands(server: Server, transport: str) -> int:
    """How many a consumer has sent for jobs."""
    return calls(server.client(), *SENT[transport])


def looked(client: redis.Redis) -> int:
    """How often claims have looked into a list."""
    return calls(client, "rpop")
