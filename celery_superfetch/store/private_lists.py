"""Private lists: claim, ack, requeue, what is in flight, and which of that is said to run.

An owner's leases call this for their own jobs; the reaper and the console read the lists of others.
If the process dies, its claims stay in the private list and what landed in the landing lists, until
the reaper returns both.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from time import time
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from ..model.job import (
    CLAIMS_A_SECOND,
    Claimed,
    Counters,
    Job,
    claim_id,
    claim_number,
    digest,
    parse,
    queue_list_of,
)
from ..model.log_text import one_line_each
from ..model.step import Claim, was_published
from ..model.strikes import STOPS_NAMED, STOPS_TO_FRONT, stop_record
from .database import Database, Structure, chunks
from .wire.call import Call
from .wire.clients import LoneConnection
from .wire.server import warn_once

logger = one_line_each(logging.getLogger(__name__))

#: Bytes one claim takes at most, but for the jobs (eight, at most) that pass the mark together: it
#: keeps others waiting.
CLAIM_BYTES = 4 * 1024 * 1024
#: Lists where jobs land that one script looks at: a worker may have thousands.
UNLAND_LISTS = 1000
#: What stands before a claim id in the names of the notes beside it: that its job has not begun,
#: and which steps that has handed on.
WAITS, STEPS = "w", "s"


class Claims(NamedTuple):
    registered: bool  # False: the owner is not registered (any more); nothing was claimed
    jobs: Sequence[Claimed] = ()
    errors: Sequence[tuple[str, str]] = ()  # queue list -> why it could not be read
    started: int = 0  # how many of the jobs, the first ones, count as running

    def fell_short(self, most: int) -> bool:
        size = sum(len(claimed.job.payload) for claimed in self.jobs)
        return len(self.jobs) < most and size < CLAIM_BYTES


class Held(NamedTuple):
    """What an owner holds, by claim ids."""

    claims: Sequence[str]  # the newest first
    running: frozenset[str]  # those of ours of which no note says that they wait


class PrivateLists(Structure):
    """Jobs in flight (``superfetch:private:<owner>``), and those that a blocking read has let land
    and no claim has named yet (``superfetch:landing:<owner>:<queue list>``)."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._next_number = 0

    def _numbers(self, count: int) -> int:
        """The first of so many numbers of claims."""
        first = max(self._next_number, int(time()) * CLAIMS_A_SECOND)
        self._next_number = first + count
        return first

    def claim(
        self,
        owner: str,
        lists: Sequence[str],
        most: int,
        turn: int,
        landed: Collection[str] = (),
        starts: int = 0,
    ) -> Call:
        """The call, for ``claims``, that claims up to ``most`` jobs: first what has ``landed`` from
        some of these ``lists``, then from all, of ``turn`` neighbours (equal queues) one each in
        turn; with a turn of 0 only what landed. So many ``starts`` count as running."""
        keys = self.keys
        names = [keys.owners, keys.recovered, keys.private(owner), *map(keys.queue, lists)]
        prefixes = keys.recoveries(""), len(keys.prefix.encode()), keys.landing(owner, "")
        args = [owner, most, CLAIM_BYTES, *prefixes, turn, starts, self._numbers(most)]
        numbers = {name: at for at, name in enumerate(lists, 1)} if landed else {}
        return Call("claim", names, [*args, *(numbers[name] for name in landed)])

    def claims(self, call: Call, lists: Sequence[str], reply: Any) -> Claims:
        if reply is None:
            return Claims(registered=False)
        started, rows, failures = reply
        owner, first, jobs = call.args[0], call.args[8], []
        for number, (at, payload, mark) in enumerate(chunks(rows, 3), first):
            name = lists[at - 1]
            job = Job(owner, name, payload, claim_id(number, name))
            jobs.append(Claimed(job, earlier_of(mark)))
        errors = [(lists[at - 1], why.decode(errors="replace")) for at, why in chunks(failures, 2)]
        return Claims(True, jobs, errors, started)

    def wait(self, connection: LoneConnection, owner: str, queue_list: str, timeout: int) -> None:
        """Send what waits for a job and lets it land, for the next claim to name; the reply is its
        payload, or None after a time."""
        queue, landing = self.keys.queue(queue_list), self.keys.landing(owner, queue_list)
        connection.send("BLMOVE", queue, landing, "RIGHT", "LEFT", timeout)

    def claim_suspect(self, owner: str, queue_list: str, alongside: bool = False) -> Call:
        """Return the call that claims the next job on probation, to run ``alongside`` others only
        if a quiesce for it was in vain; its last argument is the claim id."""
        keys = self.keys
        names = [keys.owners, keys.on_probation, keys.probation(queue_list), keys.private(owner)]
        id = claim_id(self._numbers(1), queue_list)
        args = [owner, queue_list, keys.recoveries(""), int(alongside), id]
        return Call("probation", names, args)

    def mark_suspect(self, job: Job) -> None:
        """Let whatever returns a job put it on probation; its history must be there."""
        key = self.keys.recoveries(digest(job.payload))
        try:
            self.client.hsetnx(key, "probation", 1)
        except ResponseError as exc:
            if not str(exc).startswith("WRONGTYPE"):
                raise
            # As scripts do (`delete_foreign`): a stranger's key counts as no history.
            logger.warning("Key %s held no history. It was deleted, and counts as empty.", key)
            self.client.delete(key)
            self.client.hsetnx(key, "probation", 1)

    def settle(self, owner: str, acked: Sequence[Job], starting: Iterable[Job] = ()) -> Call:
        """Return the plain command that acks jobs of one owner which have no history, and records
        that others start; at least one of either. Its reply is 0 only if none of the acked jobs was
        in the private list."""
        fields = [name for job in acked for name in names_of(job.claim_id)]
        fields += [WAITS + job.claim_id for job in starting]
        return Call("HDEL", [self.keys.private(owner)], fields, is_plain=True)

    def settle_counted(self, owner: str, acked: Sequence[Job]) -> Call:
        """Return the call that acks jobs of one owner which have a history, and deletes that. Its
        reply says how many of them were in the private list."""
        keys = [self.keys.private(owner)]
        keys += [self.keys.recoveries(digest(job.payload)) for job in acked]
        return Call("ack", keys, [job.claim_id for job in acked])

    def requeue(
        self, jobs: Sequence[Job], where: str, expires: int, stopped: Collection[Job] = ()
    ) -> Call:
        """Return the call that gives jobs of one owner and queue list back, to the ``front`` (the
        newest claim comes first) or the ``back``; its reply has the numbers, from 1, of those that
        were not there. ``expires``: ms of x-expires (0: none); ``stopped``: those whose run was cut
        short because their worker was stopping."""
        keys, owner, queue_list = self.keys, jobs[0].owner, jobs[0].queue_list
        names = [keys.private(owner), keys.queue(queue_list), keys.recovered, keys.stats]
        names += [keys.probation(queue_list), keys.on_probation, keys.stopped, keys.stats_rows]
        names += [keys.recoveries(digest(job.payload)) for job in jobs]
        window = int(self.config.strike_window)
        args = [queue_list, where, window, expires, owner, STOPS_TO_FRONT, STOPS_NAMED]
        for job in jobs:
            task, id = parse(job.payload)[1:3]
            record = stop_record(job, task, id) if job in stopped else ""
            args += [job.claim_id, record, self.database.counted_as(task)]
        # Whole: one that the server does not know yet would come behind its successor.
        return Call("requeue", names, args, whole=True)

    def requeue_all(self, jobs: Sequence[Job], expires: int) -> int:
        missing = self.scripts.run(*self.requeue(jobs, "front", expires))
        return len(jobs) - len(missing)

    def publish_step(
        self,
        name: str,
        message: str | bytes,
        lists: Sequence[str],
        ms: int,
        earlier: str,
        claim: Claim,
        is_over: bool = False,
    ) -> int:
        """Push a step to the first of some queue lists, which expire together in so many ``ms`` (0:
        they do not): 1; 0 where it was published before (``earlier``: one more steps note that says
        so); -1 where the claim is over. ``is_over``: nothing of the job is left to do after it."""
        if was_published(earlier, name):
            return 0
        keys = [claim.private, *map(self.keys.queue, lists)]
        return int(self.scripts.run("step", keys, [claim.id, name, int(is_over), message, ms]))

    def unland(self, owner: str, lists: Mapping[str, int]) -> int:
        """Put what landed from some queue lists (-> ms of x-expires), and has no name, back in
        front of them; how many jobs."""
        total = 0
        for some in chunks([*lists], UNLAND_LISTS):
            pairs = [(self.keys.landing(owner, name), self.keys.queue(name)) for name in some]
            names = [key for pair in pairs for key in pair]
            total += int(self.scripts.run("unland", names, [lists[name] for name in some]))
        return total

    def held(self, owner: str) -> Held:
        [held] = self.all_held([owner])
        return held

    def all_held(self, owners: Sequence[str]) -> list[Held]:
        rows = self._at_once(("HKEYS", self.keys.private(owner)) for owner in owners)
        return [self._held(*row) for row in zip(owners, rows, strict=True)]

    def _held(self, owner: str, fields: Collection[bytes]) -> Held:
        waiting, claims = claims_of(fields, waiting=True), claims_of(fields)
        # A set: to search the list for each claim would take 11 s for 20,000, and the square of it.
        there = set(fields)
        # Written by hand: it names no queue list, or its name is not UTF-8 and cannot be asked for.
        odd = [name for name in claims if not queue_list_of(name) or name.encode() not in there]
        if odd:
            left_out = set(odd)
            claims = [name for name in claims if name not in left_out]
            warn_once(
                f"The private list of owner {owner} has {len(odd)} fields that are no claims "
                f"({', '.join(map(repr, odd[:3]))}). They stay there, and are nobody's: look at "
                f"{self.keys.private(owner)} by HGETALL, and put on its queue what is a job."
            )
        running = frozenset(filter(claim_number, claims)).difference(waiting)
        return Held(sorted(claims, key=claim_number, reverse=True), running)

    def jobs(self, owner: str, claim_ids: Sequence[str], room: int) -> tuple[list[Job], int]:
        """The first of some claims, until they have so many bytes; of how many that speaks, since
        some may be there no longer."""
        return self.read([(owner, id) for id in claim_ids], room)

    def read(self, claims: Sequence[tuple[str, str]], room: int) -> tuple[list[Job], int]:
        """As ``jobs``, by owners and claim ids."""
        names = [self.keys.private(owner) for owner, _ in claims]
        payloads = self.scripts.run("payloads", names, [room, *(id for _, id in claims)])
        rows = zip(claims, payloads, strict=False)
        jobs = [
            Job(owner, queue_list_of(id), raw, id) for (owner, id), raw in rows if raw is not None
        ]
        return jobs, len(payloads)

    def place_of(self, owner: str) -> str:
        """Return the key of an owner's private list, as an operator types it."""
        return self.keys.private(owner)

    def key_of(self, job: Job) -> str:
        return self.keys.private(job.owner)

    def has(self, job: Job) -> bool:
        return bool(self.client.hexists(self.keys.private(job.owner), job.claim_id))

    def has_handed_on(self, job: Job) -> bool:
        return bool(self.client.hexists(self.keys.private(job.owner), STEPS + job.claim_id))

    def clear_starts(self, owner: str, claim_ids: Sequence[str]) -> Call:
        """Return the call that gives jobs of one owner the waiting note again: they have not begun,
        and do not count as running."""
        return Call("wait", [self.keys.private(owner)], claim_ids)


def names_of(claim_id: str) -> tuple[str, str, str]:
    """Return the names of the fields that a claim may have: its own, and those of its two notes."""
    return claim_id, WAITS + claim_id, STEPS + claim_id


def claims_of(fields: Iterable[bytes], *, waiting: bool = False) -> list[str]:
    """The claim ids among the fields of a private list; or those of what waits there."""
    names = [field.decode(errors="replace") for field in fields]
    if waiting:
        return [name[len(WAITS) :] for name in names if name.startswith(WAITS)]
    return [name for name in names if not name.startswith((WAITS, STEPS))]


def earlier_of(mark: Any) -> Counters | None:
    """Read the mark of a claimed job: 0, or its counts, each of which may be missing."""
    if not isinstance(mark, list):
        return None
    # Only a suspect's has the last one.
    counts = ("recoveries", "strikes", "requeues", "token", "steps", "stops")
    fields = (*counts, "first_claim", "probation")
    return Counters.read(**dict(zip(fields, mark, strict=False)))
