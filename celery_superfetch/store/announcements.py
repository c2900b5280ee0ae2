"""Who announces a killed job, and how far that has come: kept where a crash cannot reach it."""

from __future__ import annotations

from itertools import chain
from typing import Any
from uuid import uuid4

from .database import Database, Structure

#: Seconds one step may take before another process may take over from one that is no owner. An
#: owner has the right for as long as it is registered.
TIME_LIMIT = 30.0

#: Seconds after which what was noted is forgotten. While a pass comes by, it never is.
REMEMBERED = 7 * 24 * 3600


class TakenOver(Exception):
    """Another process goes on with the announcement: this one took too long."""


class Announcement(Structure):
    """The announcement of one killed job (``superfetch:announcement:<id>``).

    Arguments:
        owner: the owner that announces; empty for a process that is none.
    """

    def __init__(self, database: Database, id: str, owner: str = "") -> None:
        super().__init__(database)
        self.id = id
        self.owner = owner
        self.who = uuid4().hex
        #: Time of death in server ms.
        self.died_at = 0
        #: Tries that ended with their process, and this one.
        self.tries = 0
        #: What was noted of chord and chain: "" (not begun), "begun" or "done".
        self.chord = ""
        #: Whether ``job_killed`` was sent.
        self.told = False

    def begin(self) -> bool:
        """Take the right to announce; False when that is done, or another has it.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        return self._ask(TIME_LIMIT, new=True)

    def note(self, **notes: str) -> None:
        """Note a step; the next may take its time.

        Raises:
            TakenOver: it is somebody else's by now; do nothing more.
        """
        if not self._ask(TIME_LIMIT, *chain.from_iterable(notes.items())):
            raise TakenOver

    def give_back(self) -> None:
        """Let the next try begin at once, and do not count this one: nobody died of it."""
        self._ask(0.0)

    def done(self) -> None:
        """Note that the job's caller was told."""
        with self.client.pipeline(transaction=True) as pipe:
            pipe.srem(self.keys.unannounced, self.id)
            pipe.delete(self.keys.announcement(self.id))
            pipe.execute()

    def _ask(self, time_limit: float, *notes: str, new: bool = False) -> bool:
        owner = self.owner if time_limit else ""
        limit = int(time_limit * 1000)
        args = [self.id, self.who, owner, limit, REMEMBERED, int(new), *notes]
        announcement = self.keys.announcement(self.id)
        keys = [self.keys.unannounced, announcement, self.keys.dead, self.keys.owners]
        reply: Any = self.scripts.run("announcing", keys, args)
        if reply is None:
            return False
        died_at, tries, chord, told = reply
        self.died_at = int(died_at)
        self.tries, self.chord, self.told = int(tries), (chord or b"").decode(), bool(told)
        return True
