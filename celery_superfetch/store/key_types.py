"""Finds keys of this package that hold another type, which another program has written.

The console's overview calls it, so that a finding names them. Elsewhere a script or a command fails
at such a key, or takes it for empty (``shared.lua``, ``Database.for_reading``). It writes nothing:
if the process dies, nothing has to be repaired.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .database import Structure

#: Attribute of ``Keys`` -> the type of that key; ``never`` does not exist. Jobs depend on
#: those in ``NEEDED`` alone.
TYPE_BY_NAME = {
    **dict.fromkeys(
        ("owners", "ranks", "reaped", "served", "parked", "stopped", "dead", "dead_junk"), "zset"
    ),
    **dict.fromkeys(("run_rows", "reports", "minute_rows", "stats_rows", "deaths"), "zset"),
    **dict.fromkeys(("on_probation", "unannounced"), "set"),
    **dict.fromkeys(("paused", "audit", "bulk", "quiesce", "oldest", "last_pass", "beats"), "hash"),
    **dict.fromkeys(("dead_jobs", "dead_caps", "dead_bytes", "runs", "minutes", "stats"), "hash"),
    "has_history": "string",
}
#: Those without which jobs cannot be claimed, scheduled, recovered or dead-lettered.
NEEDED = frozenset(
    ("owners", "reaped", "parked", "dead", "dead_jobs", "dead_caps", "dead_junk", "unannounced")
)


class WrongKey(NamedTuple):
    """A key of another type."""

    key: str
    must_be: str  # the type that this package writes there
    held: str  # the type that the key has
    needed: bool  # whether jobs depend on it


class KeyTypes(Structure):
    """Reader of the types of this package's keys."""

    def wrong(self, queue_lists: Iterable[str], owners: Iterable[str]) -> list[WrongKey]:
        """Return the keys of another type, by name: among those that every database has, and those
        of some queue lists and owners. A key whose type the server does not say is left out."""
        keys = self.keys
        wanted = {
            getattr(keys, name): (kind, name in NEEDED) for name, kind in TYPE_BY_NAME.items()
        }
        for app_key in (keys.dead_of, keys.dead_never_ran):
            wanted[app_key(self.config.app_name)] = "zset", True
        for name in queue_lists:
            wanted[keys.parked_of(name)] = "zset", True
            wanted[keys.probation(name)] = "list", True
        for owner in owners:
            wanted[keys.private(owner)] = "hash", True
            wanted[keys.owner_record(owner)] = "hash", True
        replies = self._at_once([("TYPE", key) for key in wanted], errors=True)
        wrong = []
        for (key, (kind, needed)), reply in zip(wanted.items(), replies, strict=True):
            if isinstance(reply, bytes) and reply.decode() not in (kind, "none"):
                wrong.append(WrongKey(key, kind, reply.decode(), needed))
        return sorted(wrong)
