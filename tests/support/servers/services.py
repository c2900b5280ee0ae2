"""Services that people rent, as closely as a server on loopback can stand for them.

What each one forbids is from its documentation in November 2026; `docs/run/managed_redis.md`
has a row for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.servers.managed import Manners

DISCONNECTED = "its connections are closed and it missed two heartbeats"
SILENT = "no heartbeat for its owner_ttl"

EVICTS = {"maxmemory": "100mb", "maxmemory_policy": "volatile-lru"}
KEEPS = {"maxmemory": "100mb", "maxmemory_policy": "noeviction"}

AWS = ("BGREWRITEAOF", "BGSAVE", "CONFIG", "DEBUG", "MIGRATE", "REPLICAOF", "SAVE", "SHUTDOWN")
#: What Google's list leaves out of Memorystore for Redis.
GOOGLE = (
    *("CONFIG", "CLUSTER", "COMMAND", "ACL", "DEBUG", "BGSAVE", "LASTSAVE", "MIGRATE", "MONITOR"),
    *("OBJECT", "SHUTDOWN", "REPLICAOF", "SAVE"),
)
ENTERPRISE = (
    *("CLIENT|GETREDIR", "CLIENT|NO-EVICT", "CLIENT|PAUSE", "CLUSTER", "CONFIG|SET", "BGSAVE"),
    *("SAVE", "DEBUG", "LASTSAVE", "MIGRATE", "RESET", "ROLE", "SHUTDOWN", "MODULE"),
)
UPSTASH = "ERR Command is not available: '%s'. See the docs for details"


@dataclass(frozen=True)
class Profile:
    """One service, and what is right to say of it."""

    manners: Manners
    #: How a worker that died on another host is known as dead.
    far: str = DISCONNECTED
    #: Optional commands that `doctor` names as missing.
    lacks: frozenset[str] = frozenset()
    #: Codes of findings that the server itself causes.
    findings: frozenset[str] = frozenset()
    check: int = 0  # how `check` ends
    #: Options of `install()`.
    options: dict[str, Any] = field(default_factory=dict)
    #: CI runs a sample; `--services` runs all.
    sample: bool = False


PROFILES = {
    "elasticache": Profile(
        Manners(options=EVICTS, unknown=AWS, tls=True),
        lacks=frozenset({"config|get"}),
        findings=frozenset({"eviction"}),
    ),
    "elasticache_serverless": Profile(
        Manners(
            options=EVICTS,
            unknown=(
                *AWS,
                *("KEYS", "CLIENT|ID", "CLIENT|LIST", "CLIENT|KILL", "CLIENT|TRACKING"),
                *("CLIENT|UNBLOCK", "CLIENT|SETINFO", "CLIENT|PAUSE", "CLIENT|INFO", "MONITOR"),
            ),
            tls=True,
            slots=True,
        ),
        far=SILENT,
        lacks=frozenset({"client|id", "client|list", "client|kill", "client|unblock"}),
        findings=frozenset({"eviction"}),
        options={"global_keyprefix": "{shop}:"},
        sample=True,
    ),
    "memorystore": Profile(
        Manners(
            options=EVICTS,
            unknown=(*GOOGLE, "CLIENT|UNBLOCK", "CLIENT|SETINFO", "CLIENT|NO-EVICT"),
        ),
        lacks=frozenset({"client|unblock", "config|get", "object|idletime"}),
        findings=frozenset({"eviction"}),
        sample=True,
    ),
    "memorystore_without_client": Profile(
        Manners(options=EVICTS, unknown=(*GOOGLE, "CLIENT")),
        far=SILENT,
        lacks=frozenset({"client|id", "client|list", "client|kill", "client|unblock"}),
        findings=frozenset({"eviction"}),
    ),
    "redis_cloud": Profile(
        Manners(options=EVICTS, unknown=ENTERPRISE, databases=False, redirect=False, own_ids=True),
        findings=frozenset({"eviction"}),
        sample=True,
    ),
    "azure_managed_enterprise": Profile(
        Manners(
            options=EVICTS,
            unknown=ENTERPRISE,
            databases=False,
            redirect=False,
            own_ids=True,
            slots=True,
        ),
        findings=frozenset({"eviction"}),
        options={"global_keyprefix": "{shop}:"},
    ),
    "upstash_old": Profile(
        Manners(
            unknown=("CLIENT", "INFO", "CONFIG", "DEBUG", "CLUSTER", "ROLE", "WAIT"),
            refusal=UPSTASH,
            tls=True,
            databases=False,
        ),
        far=SILENT,
        lacks=frozenset({"client|id", "client|list", "info", "config|get"}),
        sample=True,
    ),
    "upstash_new": Profile(
        Manners(
            unknown=(
                *("CONFIG", "DEBUG", "CLUSTER", "ROLE", "CLIENT|TRACKING", "CLIENT|UNBLOCK"),
                *("CLIENT|KILL", "CLIENT|LIST"),
            ),
            refusal=UPSTASH,
            databases=False,
        ),
        far=SILENT,
        lacks=frozenset({"client|list", "client|kill", "client|unblock", "config|get"}),
    ),
    "heroku": Profile(
        Manners(
            options={**KEEPS, "maxclients": 60, "timeout": 10},
            unknown=("CONFIG", "DEBUG", "BGSAVE", "SAVE", "SHUTDOWN", "MIGRATE", "REPLICAOF"),
            tls=True,
            databases=False,
        ),
        lacks=frozenset({"config|get"}),
    ),
    "aiven_digitalocean": Profile(
        Manners(
            options={**KEEPS, "timeout": 10},
            unknown=("ACL", "CONFIG", "COMMAND", "CLUSTER", "DEBUG", "FAILOVER", "MIGRATE"),
            tls=True,
        ),
        lacks=frozenset({"config|get"}),
    ),
    "render": Profile(
        Manners(options={"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}),
        findings=frozenset({"eviction"}),
        check=2,
    ),
    "dragonfly": Profile(
        Manners(
            unknown=("CLIENT|UNBLOCK",),
            redirect=False,
            flags_line=False,
            info={"redis_version": "7.4.0", "run_id": None},
        ),
        far=SILENT,
        lacks=frozenset({"client|unblock"}),
    ),
}
