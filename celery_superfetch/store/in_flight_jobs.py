"""Reads how many jobs each owner has in flight, and the jobs themselves, some at a time.

An *owner* is a process that claims jobs. Its claimed jobs are in its private list. A job that a
blocking read has moved and that is not claimed yet is in a landing list of the owner. Two kinds of
jobs have no owner: a parked job waits for its ETA; a *suspect* (a job on *probation*, since it may
have crashed its worker) waits until it can run alone.

The console's commands, its web page and its metrics call it, each in their own process. A reaper
counts the jobs that a reaped owner still has, and `superfetch rollback` counts the jobs that it is
about to move. An owner calls it before it removes queue lists from its record.

It writes nothing: if the process dies, nothing has to be repaired.
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

OWNERS_PER_SCRIPT = 50  # owners that one script reads at most

#: A script that has read so many claims and queue lists does not begin with a further owner. They
#: take the server some 2 ms.
COUNTED_ENTRIES_MAX = 1000

JOBS_PER_COMMAND = 20  # jobs that a script reads with one command: they may be large
PLACES_PER_SCRIPT = 200  # one script reads at most so many places, and so many jobs
JOBS_MAX_BYTES = 4 * 1024 * 1024  # bytes of jobs after which a script reads no further job

RUNNING, RESERVED, PARKED, PROBATION = STATES = ("running", "reserved", "parked", "probation")


#: State of a job on its queue. (A look at the jobs in flight does not read it.)
WAITING = "waiting"


class JobPlace(NamedTuple):
    """A key with jobs.

    - With an owner alone: the owner's private list, whose jobs are running or reserved; ``state``
      is RESERVED.
    - With an owner and a queue list: a landing list; ``state`` is RESERVED.
    - With a queue list alone: the parked jobs or the suspects of that list, or the list itself
      (WAITING), as ``state`` says.
    """

    state: str
    owner: str = ""
    queue_list: str = ""


class SeenClaim(NamedTuple):
    """A claim in a private list, whose payload was not read."""

    owner: str
    claim_id: str
    runs: bool  # whether its run has started


class SeenJob(NamedTuple):
    """A job as it was read from its place."""

    place: JobPlace
    payload: bytes
    claim_id: str = ""  # empty: it is not in a private list
    runs: bool = False  # whether its run has started


@dataclass(frozen=True)
class InFlightCounts:
    """The numbers of jobs that one owner has in flight."""

    running: int = 0
    reserved: int = 0  # claimed, and not begun
    #: Queue list -> how many jobs from there are in the owner's private list and landing lists.
    lists: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def in_flight(self) -> int:
        return self.running + self.reserved


class InFlightJobs(Structure):
    """Reader of the jobs that owners have in flight, and of parked jobs and suspects."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.lists = PrivateLists(database)

    def counts(self, owners: Sequence[str]) -> dict[str, InFlightCounts]:
        """Return owner -> how many jobs it has in flight. One script reads fifty owners, or fewer
        if these have many queue lists, but one at least."""
        keys, counts_by_owner, at = self.keys, dict[str, InFlightCounts](), 0
        while at < len(owners):
            some = owners[at : at + OWNERS_PER_SCRIPT]
            names = [(keys.private(owner), keys.landing(owner, "")) for owner in some]
            args = [COUNTED_ENTRIES_MAX, *chain(*names)]
            rows = self.scripts.run("in_flight_counts", [*map(keys.owner_record, some)], args)
            at += len(rows)
            for owner, (runs, *row) in zip(some, rows, strict=False):
                lists = {name.decode(errors="replace"): size for name, size in chunks(row, 2)}
                size = sum(row[1::2])
                # More running jobs than jobs: the data was changed by hand.
                runs = min(runs, size)
                counts_by_owner[owner] = InFlightCounts(runs, size - runs, lists)
        return counts_by_owner

    def claims(self, owners: Sequence[str]) -> list[SeenClaim]:
        """Return the claims of some owners, those of each owner together: the running ones first,
        each kind with its oldest first. No payload is read."""
        found: list[SeenClaim] = []
        for some in chunks(owners, OWNERS_PER_SCRIPT):
            for owner, (claims, running) in zip(some, self.lists.all_held(some), strict=True):
                order = sorted(claims, key=lambda id: (id not in running, claim_number(id)))
                found += [SeenClaim(owner, id, id in running) for id in order]
        return found

    def read(self, claims: Sequence[SeenClaim], most: int) -> Iterator[list[SeenJob]]:
        """Yield the jobs of some claims, in their order, about ``most`` in a round trip. A claim
        that is gone by now is left out."""
        most = min(most, PLACES_PER_SCRIPT)
        runs = {(owner, id) for owner, id, runs in claims if runs}
        at = 0
        while at < len(claims):
            some = [(owner, id) for owner, id, _ in claims[at : at + most]]
            jobs, read_count = self.lists.read(some, JOBS_MAX_BYTES)
            at += read_count
            yield [
                SeenJob(JobPlace(RESERVED, owner), payload, id, (owner, id) in runs)
                for owner, _, payload, id in jobs
            ]

    def jobs(self, places: Sequence[JobPlace], most: int) -> Iterator[list[SeenJob]]:
        """Yield the jobs of some places, about ``most`` in a round trip. Those of a private list
        come in the order of ``claims``, parked jobs by their time. Private lists should be
        neighbours in ``places``, since a round trip reads several. A job that moves meanwhile may
        be missed, or returned twice."""
        most = min(most, PLACES_PER_SCRIPT)
        for are_lists, alike in groupby(places, lambda place: bool(place.queue_list)):
            for some in chunks([*alike], PLACES_PER_SCRIPT if are_lists else OWNERS_PER_SCRIPT):
                if are_lists:
                    yield from self._lists(some, most)
                else:
                    yield from self.read(self.claims([place.owner for place in some]), most)

    def _lists(self, places: Sequence[JobPlace], most: int) -> Iterator[list[SeenJob]]:
        keys, at, cursor = [*map(self.key_of, places)], 0, b"0"
        while at < len(keys):
            args, page = [most, JOBS_MAX_BYTES, JOBS_PER_COMMAND, cursor], list[SeenJob]()
            for cursor, rows in self.scripts.run("pages", keys[at:], args):
                page += [SeenJob(places[at], payload) for payload in rows]
                if cursor == b"0":  # the script has read this key to its end
                    at += 1
            yield page

    def landed_count(self, places: Sequence[JobPlace]) -> int:
        """Return the number of jobs in some landing lists."""
        lengths = self._at_once((("LLEN", self.key_of(place)) for place in places), errors=True)
        return sum(length for length in lengths if isinstance(length, int))

    def key_of(self, place: JobPlace) -> str:
        """Return the key of a place with a queue list."""
        kinds = {PROBATION: self.keys.probation, PARKED: self.keys.parked_of}
        kinds[WAITING] = self.keys.queue
        kind = kinds.get(place.state, partial(self.keys.landing, place.owner))
        return kind(place.queue_list)
