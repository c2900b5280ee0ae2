"""In-flight counts of owners, and the jobs in private lists, landing lists, the parked set and
probation, a page at a time. Commands, metrics and the page read it, passes, and an owner that drops
the queue lists it no longer uses; nothing here writes."""

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

#: Claims and queue lists at which one script looks, but for those of its last owner: 2 ms of the
#: server.
HOLDINGS_LOOKS = 1000

#: Jobs of any size that are read at a time; places, jobs and bytes that are enough for one script.
PAGE = 20
BATCH = 200
ROOM = 4 * 1024 * 1024

RUNNING, RESERVED, PARKED, PROBATION = STATES = ("running", "reserved", "parked", "probation")


class Place(NamedTuple):
    """A place of jobs in one state. With an owner and no queue list it is the owner's private list,
    which has the running jobs, too; with both it is a landing list."""

    state: str
    owner: str = ""
    queue_list: str = ""


class SeenJob(NamedTuple):
    """A job as it was read from its place."""

    place: Place
    payload: bytes
    claim_id: str = ""
    runs: bool = False


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
    """Reader of what owners have in flight, and of jobs that wait elsewhere."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.lists = PrivateLists(database)

    def of(self, owners: Sequence[str]) -> dict[str, Holding]:
        """Return what each owner holds, by a script for each fifty of them, or fewer where these
        have many queue lists."""
        keys, holdings, at = self.keys, dict[str, Holding](), 0
        while at < len(owners):
            some = owners[at : at + CHUNK]
            names = [(keys.private(holder), keys.landing(holder, "")) for holder in some]
            args = [HOLDINGS_LOOKS, *chain(*names)]
            rows = self.scripts.run("holdings", [*map(keys.facts, some)], args)
            at += len(rows)
            for owner, (runs, *row) in zip(some, rows, strict=False):
                lists = {name.decode(errors="replace"): size for name, size in chunks(row, 2)}
                size = sum(row[1::2])
                # A record without its claim is by somebody's hand.
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
                at += cursor == b"0"
            yield page

    def _key(self, place: Place) -> str:
        kinds = {PROBATION: self.keys.probation, PARKED: self.keys.parked_of}
        kind = kinds.get(place.state, partial(self.keys.landing, place.owner))
        return kind(place.queue_list)
