"""Finds the jobs of one task id, of one digest, or of a part of an id or of a task's name, wherever
they are: nothing in Redis is filed under the id or the name of a task.

The console calls it for one job, and for a search by a part (``console/one_job.py``). A script, or
ZSCAN for the ids of parked jobs, compares many jobs on the server and returns those that were
sought. Each search examines a limited number of jobs, and says how many. It writes nothing: if the
process dies, nothing has to be repaired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ..model.dead_job import FULL_ID, DeadJob
from .database import Database, Structure
from .dead_set import DeadSetStore
from .in_flight_jobs import (
    JOBS_PER_COMMAND,
    PARKED,
    InFlightJobs,
    JobPlace,
    SeenClaim,
    SeenJob,
)

FOUND_MOST = 20  # jobs of a kind of place after which a search asks for no more
CLAIMS_SEARCHED = 20_000  # claims that a search examines at most
DEAD_SEARCHED = 10_000  # dead jobs that it examines at most, the newest
LIST_SEARCHED = 500  # jobs of a queue list that it examines at most, those that are next
PARKED_SEARCHED = 100_000  # parked jobs compared with a task id, after which no round trip is made
PARKED_LISTS_AT_ONCE = 100  # lists of parked jobs that are scanned in one round trip
SEARCHES_PER_SCRIPT = 500  # claims, or lists, of one script
#: Bytes of jobs after which a script examines no further job. They take the server some 3 ms.
SEARCH_MAX_BYTES = 4 * 1024 * 1024
DIGEST = re.compile(r"[0-9a-f]{40}")


class Sought(NamedTuple):
    """The id of a job: Celery's id of its task, or the digest of its message; or a part of a task
    id or of a task's name, without regard to case."""

    id: str
    is_part: bool = False

    @property
    def args(self) -> list[Any]:
        """The first arguments of the script."""
        text = json.dumps(self.id)
        if self.is_part:
            text = text[1:-1].lower()
        return [text, self.digest, int(self.is_part), FOUND_MOST, SEARCH_MAX_BYTES]

    @property
    def digest(self) -> str:
        """The digest; empty if the id cannot be one."""
        return self.id if DIGEST.fullmatch(self.id) and not self.is_part else ""


class Search(NamedTuple):
    """The result of a search in one kind of place."""

    jobs: Sequence[SeenJob]
    examined: int
    is_cut: bool  # whether the search ended before the last job: others may match


class DeadSearch(NamedTuple):
    """The result of a search in the dead set; the fields are as those of ``Search``."""

    jobs: Sequence[DeadJob]
    examined: int
    is_cut: bool


class Matches(NamedTuple):
    """The fields of hashes, or the lists, that one search examined."""

    rows: list[tuple[int, bytes]]  # of each match: its position among them, and its payload
    examined: int
    is_cut: bool


class JobSearch(Structure):
    """A search for jobs by their id, their digest, or a part of an id or of a task's name."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._in_flight_jobs, self._dead = InFlightJobs(database), DeadSetStore(database)

    def in_claims(self, sought: Sought, claims: Sequence[SeenClaim]) -> Search:
        """Search the claims of owners."""
        some = claims[:CLAIMS_SEARCHED]
        fields = [(self.keys.private(claim.owner), claim.claim_id) for claim in some]
        rows, examined, is_cut = self._find(sought, fields)
        jobs = [
            SeenJob(JobPlace("", some[at].owner), payload, some[at].claim_id, some[at].runs)
            for at, payload in rows
        ]
        return Search(jobs, examined, is_cut or len(some) < len(claims))

    def in_lists(self, sought: Sought, places: Sequence[JobPlace]) -> Search:
        """Search the next ``LIST_SEARCHED`` jobs of each of some lists."""
        keys = [(self._in_flight_jobs.key_of(place), "") for place in places]
        rows, examined, is_cut = self._find(sought, keys)
        return Search([SeenJob(places[at], payload) for at, payload in rows], examined, is_cut)

    def in_parked(self, sought: Sought, sizes: Mapping[str, int]) -> Search:
        """Search parked jobs for a task id: their names in the sorted set begin with it. For a
        part of one, or a digest, search the next ``LIST_SEARCHED`` of each queue list.

        Arguments:
            sizes: queue list -> number of its parked jobs.
        """
        places = [JobPlace(PARKED, queue_list=name) for name in sizes]
        if sought.is_part:
            return self.in_lists(sought, places)
        by_id = self._in_names(sought, places, sizes)
        if not sought.digest:
            return by_id
        # The name of a parked job does not say its digest, so the jobs whose names were compared
        # were not examined.
        by_digest = self.in_lists(sought, places)
        jobs = [*dict.fromkeys([*by_id.jobs, *by_digest.jobs])]
        return Search(jobs, by_digest.examined, by_id.is_cut or by_digest.is_cut)

    def _in_names(
        self, sought: Sought, places: Sequence[JobPlace], sizes: Mapping[str, int]
    ) -> Search:
        """Search parked jobs for a task id by their names, some lists in each round trip."""
        pattern = re.sub(rb"([\\*?\[\]^])", rb"\\\1", json.dumps(sought.id).encode()) + b" *"
        jobs: list[SeenJob] = []
        examined = 0
        cursors = dict.fromkeys(places, 0)  # of the lists that were not scanned to their end
        options = "MATCH", pattern, "COUNT", SEARCHES_PER_SCRIPT
        left = dict(sizes)  # queue list -> parked jobs that were not examined
        while cursors and examined < PARKED_SEARCHED and len(jobs) < FOUND_MOST:
            some = [*islice(cursors.items(), PARKED_LISTS_AT_ONCE)]
            commands = [
                ("ZSCAN", self._in_flight_jobs.key_of(place), cursor, *options)
                for place, cursor in some
            ]
            replies = self._at_once(commands, empty=(0, []))
            for (place, _), (cursor, members) in zip(some, replies, strict=True):
                # The reply has the matches alone: it does not say how many jobs were compared.
                size = left[place.queue_list]
                count = min(size, SEARCHES_PER_SCRIPT) if cursor else size
                left[place.queue_list] -= count
                examined += count
                jobs += [SeenJob(place, member.partition(b"\n")[2]) for member, _ in members]
                if cursor:
                    cursors[place] = cursor
                else:
                    del cursors[place]
        return Search(jobs, examined, bool(cursors))

    def in_dead_set(self, sought: Sought) -> DeadSearch:
        """Search the newest dead jobs."""
        rows = self._read(self.client.zrange, self.keys.dead, -DEAD_SEARCHED, -1, empty=[])[::-1]
        names = [row.decode(errors="replace") for row in rows]
        found, examined, is_cut = self._find(
            sought, [(self.keys.dead_jobs, name) for name in names]
        )
        ids = {names[at] for at, _ in found}
        # An id in the dead set is a digest; a number follows if there are two of the same bytes.
        if FULL_ID.fullmatch(sought.id):
            ids |= {name for name in names if sought.id in (name, name.partition("-")[0])}
        is_cut = is_cut or (len(rows) == DEAD_SEARCHED and len(self._dead) > DEAD_SEARCHED)
        return DeadSearch([*self._dead.exact_many(sorted(ids)).values()], examined, is_cut)

    def _find(self, sought: Sought, fields: Sequence[tuple[str, str]]) -> Matches:
        """Search the fields of some hashes, or lists (those whose field is empty)."""
        found: list[tuple[int, bytes]] = []
        at = examined = cut_count = 0
        while at < len(fields) and len(found) < FOUND_MOST:
            some = fields[at : at + SEARCHES_PER_SCRIPT]
            args = [*sought.args, LIST_SEARCHED, JOBS_PER_COMMAND, *(field for _, field in some)]
            keys, jobs, is_cut, *pairs = self.scripts.run("find", [key for key, _ in some], args)
            found += [(at + pairs[n] - 1, pairs[n + 1]) for n in range(0, len(pairs), 2)]
            at, examined, cut_count = at + keys, examined + jobs, cut_count + is_cut
        return Matches(found, examined, bool(cut_count) or at < len(fields))
