"""Commands that clients have sent, as the server counts them."""

from __future__ import annotations

import redis

from support.servers.server import Server

STOCK = "redis"
OURS = "celery_superfetch:Transport"

#: What each sends for jobs. The server counts what a script calls as well, so no other may be.
SENT = {
    OURS: ("evalsha", "eval", "blmove"),
    STOCK: ("multi", "exec", "brpop", "zadd", "zrem", "hset", "hdel", "hget"),
}


def commands(server: Server, transport: str) -> int:
    """How many were sent since the server's statistics were reset."""
    stats = server.client().info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in SENT[transport])


def looked(client: redis.Redis) -> int:
    """How often claims have looked into a list since the server's statistics were reset."""
    return int(client.info("commandstats").get("cmdstat_rpop", {}).get("calls", 0))
