"""The jobs of bulk actions that are under way, so that another process can continue one.

The page stores the ids of an action before it acts on the first batch, and removes them when it has
ended; its audit entry has the number of jobs that were dealt with. If the page's process dies, the
ids are here for a day, and a visitor continues the action. If the process died between a batch and
its entry, that batch is tried again: dead jobs have left by then, and count as not found; jobs that
were revoked are revoked again, which changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..model.records import parsed_json
from .database import Structure

#: Seconds after which an action that was not continued is forgotten, and the number of actions
#: whose ids are kept. An action has 1 MB of ids at most, as the form that names them.
BULK_IDS_TTL_S, BULK_IDS_MAX = 86_400, 10


class BulkIds(Structure):
    """The ids of jobs of bulk actions (``superfetch:bulk``)."""

    def store(self, change: str, ids: Sequence[str]) -> None:
        """Store the ids of an action, by the id of its audit entry; the oldest action goes if there
        are too many."""
        key = self.keys.bulk
        row = json.dumps([*ids], ensure_ascii=False).encode(errors="replace")
        commands = [("HSET", key, change, row), ("EXPIRE", key, BULK_IDS_TTL_S)]
        surplus = sorted(self.client.hkeys(key), reverse=True)[BULK_IDS_MAX - 1 :]
        self._at_once([*(("HDEL", key, old) for old in surplus), *commands])

    def read(self, change: str) -> list[str]:
        """Return the ids of an action; none if it has ended, or is unknown."""
        raw = self.client.hget(self.keys.bulk, change)
        return [id for id in parsed_json(raw or b"", list[object]()) if isinstance(id, str)]

    def has(self, change: str) -> bool:
        return bool(self.client.hexists(self.keys.bulk, change))

    def forget(self, change: str) -> None:
        self.client.hdel(self.keys.bulk, change)
