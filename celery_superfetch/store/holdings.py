"""Reads how many jobs each owner has in flight, and the jobs themselves, some at a time.

An owner's claimed jobs are in its private list. A job that a blocking read has moved and that is
not claimed yet is in a landing list of the owner. Two kinds of jobs have no owner: a parked job
waits for its ETA; a job on probation (it may have crashed its worker) waits until it can run alone.

The console's commands, its web page and its metrics call it, each in their own process. A reaper
counts with it what a reaped owner still has, `superfetch drain` what it will move. An owner calls
it before it drops queue lists that it no longer uses.

It writes nothing, so that a death of the process leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from typing import NamedTuple

from ..model.job import claim_number
from .database import Database, Structure, chunks
from .private_lists import PrivateLists

CHUNK = 50  # owners of one script

#: Claims and queue lists after which one script begins with no other owner: they take the server
#: some 2 ms.
HOLDINGS_LOOKS = 1000

PAGE = 20  # jobs that a script reads with one command: they may be large
BATCH = 200  # places, and jobs, of one script
ROOM = 4 * 1024 * 1024  # bytes of jobs after which a script reads no more

RUNNING, RESERVED, PARKED, PROBATION = STATES = ("running", "reserved", "parked", "probation")


class Place(NamedTuple):
    """A key with jobs. (``Place`` of ``model/place.py`` is an owner's rank.) With an owner alone it
    is the owner's private list, whose jobs are running or reserved, and ``state`` is RESERVED. With
    an owner and a queue list it is a landing list. With a queue list alone it has the parked jobs
    or the suspects of that list, as ``state`` says."""

    state: str
    owner: str = ""
    queue_list: str = ""


class SeenJob(NamedTuple):
    """A job as it was read from its place."""

    place: Place
    payload: bytes
    claim_id: str = ""  # empty: it is not in a private list
    runs: bool = False  # whether its run has started


@dataclass(frozen=True)
class Holding:
    """How many jobs one owner has in flight."""

    running: int = 0
    reserved: int = 0  # claimed, and not begun
    #: Queue list -> how many jobs from there are in the owner's private list and landing lists.
    lists: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def in_flight(self) -> int:
        return self.running + self.reserved


class Holdings(Structure):
    """Reader of the jobs that owners have in flight, and of parked jobs and suspects."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.lists = PrivateLists(database)

    def of(self, owners: Sequence[str]) -> dict[str, Holding]:
        """Return owner -> how many jobs it has in flight. One script reads fifty owners, or fewer
        if these have many queue lists, but one at least."""
        keys, holdings, at = self.keys, dict[str, Holding](), 0
        while at < len(owners):
            some = owners[at : at + CHUNK]
            names = [(keys.private(owner), keys.landing(owner, "")) for owner in some]
            args = [HOLDINGS_LOOKS, *chain(*names)]
            rows = self.scripts.run("holdings", [*map(keys.facts, some)], args)
            at += len(rows)
            for owner, (runs, *row) in zip(some, rows, strict=False):
                lists = {name.decode(errors="replace"): size for name, size in chunks(row, 2)}
                size = sum(row[1::2])
                # More running jobs than jobs: the data was changed by hand.
                runs = min(runs, size)
                holdings[owner] = Holding(runs, size - runs, lists)
        return holdings

    def jobs(self, places: Sequence[Place], most: int) -> Iterator[list[SeenJob]]:
        """Yield the jobs of some places, about ``most`` in a round trip: running jobs first, the
        oldest claim before the others, and parked jobs by their time. Places of owners should be
        neighbours in ``places``, since a round trip reads several. A job that moves meanwhile may
        be missed, or seen twice."""
        most = min(most, BATCH)
        for are_lists, alike in groupby(places, lambda place: bool(place.queue_list)):
            for some in chunks([*alike], BATCH if are_lists else CHUNK):
                yield from (self._lists if are_lists else self._claims)(some, most)

    def _claims(self, places: Sequence[Place], most: int) -> Iterator[list[SeenJob]]:
        owners = [place.owner for place in places]
        left: list[tuple[str, str]] = []
        runs: set[tuple[str, str]] = set()
        for owner, (claims, running) in zip(owners, self.lists.all_held(owners), strict=True):
            order = sorted(claims, key=lambda id: (id not in running, claim_number(id)))
            left += [(owner, id) for id in order]
            runs |= {(owner, id) for id in running}
        at = 0
        while at < len(left):
            jobs, seen = self.lists.read(left[at : at + most], ROOM)
            at += seen
            yield [
                SeenJob(Place(RESERVED, owner), payload, id, (owner, id) in runs)
                for owner, _, payload, id in jobs
            ]

    def _lists(self, places: Sequence[Place], most: int) -> Iterator[list[SeenJob]]:
        keys, at, cursor = [*map(self._key, places)], 0, b"0"
        while at < len(keys):
            args, page = [most, ROOM, PAGE, cursor], list[SeenJob]()
            for cursor, rows in self.scripts.run("pages", keys[at:], args):
                page += [SeenJob(places[at], payload) for payload in rows]
                if cursor == b"0":  # the script has read this key to its end
                    at += 1
            yield page

    def _key(self, place: Place) -> str:
        kinds = {PROBATION: self.keys.probation, PARKED: self.keys.parked_of}
        kind = kinds.get(place.state, partial(self.keys.landing, place.owner))
        return kind(place.queue_list)
