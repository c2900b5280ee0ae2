"""Who announces a killed job, and how far that has come: kept where a crash cannot reach it."""

from __future__ import annotations

from itertools import chain
from typing import Any
from uuid import uuid4

from .database import Database, Structure

#: Seconds that one who is no owner has for a step before another may take over. An owner has the
#: right for as long as it is registered.
TIME_LIMIT = 30.0

REMEMBERED = 7 * 24 * 3600  # seconds after which notes are forgotten; never while passes come by


class TakenOver(Exception):
    """Another process announces the job, or has done so."""


class Announcement(Structure):
    """The announcement of one killed job (``superfetch:announcement:<id>``), by an ``owner`` or, if
    that is empty, by a process that is none. Each step raises TakenOver where it is done, another
    has the right, or its pause is not over."""

    died_at = 0  # time of death in server ms
    tries = 0  # tries that ended with their process, and this one
    pause = 0.0  # seconds for which it was left alone after the last try, which failed
    chord = ""  # what was noted of chord and chain: "" (not begun), "begun" or "done"
    told = False  # whether ``job_killed`` was sent

    def __init__(self, database: Database, id: str, owner: str = "") -> None:
        super().__init__(database)
        self.id, self.owner, self.who = id, owner, uuid4().hex

    def begin(self) -> None:
        self._ask(self.owner, TIME_LIMIT, 1)

    def note(self, **notes: str) -> None:
        """Note a step; the next may take its time."""
        self._ask(self.owner, TIME_LIMIT, 0, *chain.from_iterable(notes.items()))

    def give_back(self, pause: float = 0.0) -> None:
        """Let the next try begin after so many s, and do not count this one: nobody died of it."""
        self._ask("", pause, -1, "pause", str(pause))

    def done(self) -> None:
        with self.client.pipeline(transaction=True) as pipe:
            pipe.srem(self.keys.unannounced, self.id)
            pipe.delete(self.keys.announcement(self.id))
            pipe.hdel(self.keys.running(self.owner), self.id)
            pipe.execute()

    def _ask(self, owner: str, time_limit: float, new: int, *notes: str) -> None:
        keys = self.keys
        reply: Any = self.scripts.run(
            "announcing",
            [
                keys.unannounced,
                keys.announcement(self.id),
                keys.dead,
                keys.owners,
                keys.running(self.owner),
            ],
            [self.id, self.who, owner, int(time_limit * 1000), REMEMBERED, new, *notes],
        )
        if reply is None:
            raise TakenOver
        died_at, tries, chord, told, pause = reply
        self.died_at, self.tries, self.pause = int(died_at), int(tries), float(pause or 0)
        self.chord, self.told = (chord or b"").decode(), bool(told)
