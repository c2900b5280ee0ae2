"""What owners hold, counted or a page at a time: for those who look, not for those who work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, NamedTuple

from .database import Structure, chunks

CHUNK = 50  # owners of one script: with 80 lists each they are 8,000 looks, 5 ms of the server

#: Jobs of any size that are read at a time; places, jobs and bytes that are enough for one script.
PAGE = 20
BATCH = 200
ROOM = 4 * 1024 * 1024

RUNNING, RESERVED, PARKED, PROBATION = STATES = ("running", "reserved", "parked", "probation")


class Place(NamedTuple):
    """Where jobs of one state are, those that run among them; of RUNNING ones the notes."""

    state: str
    owner: str = ""
    queue_list: str = ""


@dataclass(frozen=True)
class Holding:
    """How many jobs one owner has in flight."""

    running: int = 0
    reserved: int = 0  # claimed, and not begun
    #: Queue list -> how many from there are in its private list.
    lists: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def in_flight(self) -> int:
        return self.running + self.reserved


class Holdings(Structure):
    """Counts of private lists and running jobs, read together."""

    def of(self, owners: Sequence[str]) -> dict[str, Holding]:
        """Owner -> what it holds, by a script for each fifty of them."""
        keys, found = self.keys, {}
        for some in chunks(owners, CHUNK):
            names = [(keys.private(one, ""), keys.running(one)) for one in some]
            rows = self.scripts.run("holdings", [*map(keys.facts, some)], [*chain(*names)])
            for owner, (runs, *row) in zip(some, rows, strict=True):
                lists = {name.decode(errors="replace"): size for name, size in chunks(row, 2)}
                size = sum(row[1::2])
                # What runs is in a private list, unless its record outlived it by a moment.
                runs = min(runs, size)
                found[owner] = Holding(runs, size - runs, lists)
        return found

    def look(
        self, places: Sequence[Place], most: int
    ) -> Iterator[list[tuple[Place, list[tuple[str, bytes]]]]]:
        """What is in some places, about ``most`` jobs of it in a round trip: pages of payloads, the
        oldest claim first, or what is due first. RUNNING: digests, each after its claim id."""
        keys, at, cursor = [*map(self._key, places)], 0, b"0"
        while at < len(keys):
            args: list[Any] = [min(most, BATCH), ROOM, PAGE, cursor]
            pages = []
            for cursor, rows in self.scripts.run("look", keys[at : at + BATCH], args):
                named = places[at].state == RUNNING
                pairs = chunks(rows, 2) if named else zip(repeat(b""), rows)
                pages.append((places[at], [(id.decode(), row) for id, row in pairs]))
                at += cursor == b"0"
            yield pages

    def _key(self, place: Place) -> str:
        state, owner, queue_list = place
        if state == RUNNING:
            return self.keys.running(owner)
        if state == PROBATION:
            return self.keys.probation(queue_list)
        if state == PARKED:
            return self.keys.parked_of(queue_list)
        return self.keys.private(owner, queue_list)
