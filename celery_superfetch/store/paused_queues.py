"""Paused queues: no worker claims from them, for as long as a person wants.

`superfetch queue` and the page pause and resume a queue, by its name, for all workers of a
database. ``claim.lua`` and ``probation.lua`` check it in each claim; ``heartbeat.lua`` names the
paused queues to each worker. The console shows them, and `superfetch rollback` names them.
``Queues.pop_message`` asks ``has``: the channel calls it for a receiver that wants no acks.

The hash (``superfetch:paused``) has no TTL, so that a pause survives restarts of workers and of the
server. One command writes a pause, and one removes it: if the process dies, the queue is paused, or
it is not. Two processes that pause queues at once may exceed ``PAUSED_MAX`` by one each. A key of
another type is deleted first: if the process dies then, nothing is paused, as before.
"""

from __future__ import annotations

import json
import logging
from typing import Any, NamedTuple

from ..errors import BadQueue
from ..model.log_text import one_line_each
from ..model.records import parsed_json, text_of, whole
from .database import Structure, none_if_wrong_type

logger = one_line_each(logging.getLogger(__name__))

#: Queues that are paused at most: each heartbeat of each worker names all of them.
PAUSED_MAX = 1000
#: Bytes of a queue's name, and characters of the text that says who paused it.
NAME_MAX_BYTES, BY_MAX_CHARS = 1000, 200


class Pause(NamedTuple):
    """The pause of one queue."""

    at: int  # its begin (server ms); 0: a person wrote the row by hand, and it is unknown
    by: str  # who paused it, as far as that is known


class PausedQueues(Structure):
    """The paused queues of a database (``superfetch:paused``)."""

    def all(self) -> dict[str, Pause]:
        """Return each paused queue with its pause."""
        [reply] = self._at_once([("HGETALL", self.keys.paused)], errors=True)
        rows = none_if_wrong_type(reply) or {}  # as in the scripts: another type pauses nothing
        return {name.decode(errors="replace"): _pause(row) for name, row in rows.items()}

    def has(self, queue: str) -> bool:
        """Return whether a queue is paused."""
        [reply] = self._at_once([("HEXISTS", self.keys.paused, queue)], errors=True)
        return none_if_wrong_type(reply) == 1

    def pause(self, queue: str, by: str) -> tuple[Pause, bool]:
        """Pause a queue.

        Arguments:
            by: who does it.

        Returns:
            The pause, and whether it is new: if the queue is paused already, that pause stays.

        Raises:
            BadQueue: the name cannot be that of a queue, or too many queues are paused.
        """
        self._check(queue)
        key, now = self.keys.paused, self.database.server_time()
        [kind] = self._at_once([("TYPE", key)])
        if kind not in (b"hash", b"none"):
            logger.warning(
                "celery_superfetch deleted key %s: it must hold the paused queues, and was a %s. "
                "Earlier pauses are gone: pause those queues again. Find the program that writes "
                "to superfetch keys.",
                key,
                kind.decode(),
            )
            self.client.delete(key)
        row = json.dumps({"at": now, "by": by[:BY_MAX_CHARS]})
        count, is_paused = self._at_once([("HLEN", key), ("HEXISTS", key, queue)])
        if count >= PAUSED_MAX and not is_paused:
            raise BadQueue(
                f"{count} queues are paused already, and at most {PAUSED_MAX} can be: each "
                "heartbeat names all of them. Stop the workers instead"
            )
        is_new, stored = self._at_once([("HSETNX", key, queue, row), ("HGET", key, queue)])
        return _pause(stored or row), bool(is_new)

    def resume(self, queue: str) -> Pause | None:
        """End the pause of a queue; return the pause, or None if it was not paused."""
        if not _is_utf8(queue) or not self.has(queue):
            return None
        key = self.keys.paused
        row, removed = self._at_once([("HGET", key, queue), ("HDEL", key, queue)])
        return _pause(row) if row is not None and removed else None

    def _check(self, queue: str) -> None:
        """Raise BadQueue for a name that no queue can have."""
        if not _is_utf8(queue):
            raise BadQueue(f"the name of a queue must be UTF-8, got {queue!r}")
        size = len(queue.encode())
        if not 1 <= size <= NAME_MAX_BYTES:
            raise BadQueue(f"the name of a queue must have 1 to {NAME_MAX_BYTES} bytes, got {size}")
        if self.database.queue_of(queue) != queue:
            raise BadQueue(
                f"{queue!r} is the list of one priority, and a pause is one of the whole queue: "
                f"name queue {self.database.queue_of(queue)!r}"
            )


def _is_utf8(name: str) -> bool:
    """Return whether a name can be encoded: an argument of a command may have half a character."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pause(row: bytes | str) -> Pause:
    """Read a row of the hash, which a person may have written by hand."""
    fields: dict[str, Any] = parsed_json(row, {})
    return Pause(max(0, whole(fields.get("at"))), text_of(fields.get("by"))[:BY_MAX_CHARS])
