"""Private lists: claim, ack, requeue, what is in flight, and which of that is said to run."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import count
from time import time
from typing import Any, NamedTuple

from ..model.job import Claimed, Counters, Job, claim_id, digest
from ..model.strikes import Running
from .database import Database, Structure, chunks
from .wire.clients import LoneConnection
from .wire.scripts import Call

#: Bytes one claim takes at most, but for the job that passes the mark: it keeps others waiting.
CLAIM_BYTES = 4 * 1024 * 1024
RAN = "ran"  # a field of what is recorded as running that is no claim's (``Keys.running``)


class Claims(NamedTuple):
    registered: bool  # False: the owner is not registered (any more); nothing was claimed
    jobs: Sequence[Claimed] = ()
    confirmed: Sequence[Claimed | None] = ()  # for each job to confirm; None: ours no longer
    errors: Sequence[tuple[str, str]] = ()  # queue list -> why it could not be read
    started: Sequence[Claimed] = ()  # those that are recorded as running

    def fell_short(self, most: int) -> bool:
        size = sum(len(claimed.job.payload) for claimed in self.jobs)
        return len(self.jobs) < most and size < CLAIM_BYTES

    def reach(self, order: Sequence[str]) -> int:
        """How many of the lists it would have been enough to name."""
        return 1 + max(map(order.index, {claimed.job.queue_list for claimed in self.jobs}))


class PrivateLists(Structure):
    """Jobs in flight (``superfetch:private:<owner>:<queue list>``)."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._claim_ids = count(1)

    def job(self, owner: str, queue_list: str, payload: bytes) -> Job:
        return Job(owner, queue_list, payload, self._claim_id())

    def _claim_id(self) -> str:
        """One of its own, later ones greater; when it was made is for those who look."""
        return claim_id(time(), next(self._claim_ids))

    def claim(
        self,
        owner: str,
        lists: Sequence[str],
        most: int,
        turn: int,
        confirm: Sequence[Job] = (),
        starts: int = 0,
    ) -> Call:
        """The call, for ``claims``, that claims up to ``most`` jobs from ``lists``, of ``turn``
        neighbours (equal queues) one each in turn. So many ``starts`` are recorded as running,
        those first that it may ``confirm``: a blocking read brought them."""
        keys = self.keys
        names = [keys.owners, keys.recovered, keys.running(owner), *map(keys.queue, lists)]
        names.append(keys.facts(owner))
        cut, prefix = len(keys.prefix.encode()), keys.private(owner, "")
        args: list[Any] = [owner, most, CLAIM_BYTES, keys.recoveries(""), cut, prefix]
        args += [turn, starts, len(confirm)]
        for job in confirm:
            args += [lists.index(job.queue_list) + 1, job.payload, job.claim_id]
        args += [self._claim_id() for _ in range(min(starts, most))]
        return Call("claim", names, args)

    def claims(
        self, call: Call, lists: Sequence[str], confirm: Sequence[Job], reply: Any
    ) -> Claims:
        if reply is None:
            return Claims(registered=False)
        started, rows, *more = reply
        owner, ids = call.args[0], iter(call.args[9 + 3 * len(confirm) :])
        jobs = []
        for number, payload, mark in chunks(rows, 3):
            job = Job(owner, lists[number - 1], payload, next(ids, None) or self._claim_id())
            jobs.append(Claimed(job, earlier_of(mark)))
        if not more:
            return Claims(True, jobs, started=jobs[:started])
        marks, errors = more
        confirmed = [
            None if mark == -1 else Claimed(job, earlier_of(mark))
            for job, mark in zip(confirm, marks, strict=True)
        ]
        failed = [(lists[at - 1], why.decode(errors="replace")) for at, why in chunks(errors, 2)]
        return Claims(True, jobs, confirmed, failed, [*filter(None, confirmed), *jobs][:started])

    def wait(self, connection: LoneConnection, owner: str, queue_list: str, timeout: int) -> None:
        """Send the claim that waits for a job; the reply is its payload, or None after a time."""
        queue, private = self.keys.queue(queue_list), self.keys.private(owner, queue_list)
        connection.send("BLMOVE", queue, private, "RIGHT", "LEFT", timeout)

    def claim_alone(self, owner: str, queue_list: str) -> Call:
        """The call that claims the next job on probation; its last argument is the claim id."""
        keys = self.keys
        names = [keys.owners, keys.on_probation, keys.running(owner)]
        names += [keys.probation(queue_list), keys.private(owner, queue_list)]
        args = [owner, queue_list, keys.recoveries(""), self._claim_id()]
        return Call("probation", names, args)

    def ack(
        self,
        settled: Sequence[Claimed],
        starting: Mapping[Job, str] | None = None,
    ) -> Call:
        """The call that settles jobs, with their counters, and records those that are ``starting``
        in their place (job -> its digest)."""
        keys: list[str] = []
        counters: list[str] = []
        args: list[Any] = [len(settled)]
        for job, earlier in settled:
            keys += [self.keys.private(job.owner, job.queue_list), self.keys.running(job.owner)]
            args += [job.payload, int(earlier is not None), job.claim_id]
            if earlier is not None:
                counters.append(self.keys.recoveries(digest(job.payload)))
        keys += counters
        for job, name in (starting or {}).items():
            keys.append(self.keys.running(job.owner))
            args += [job.claim_id, name]
        return Call("ack", keys, args)

    def requeue(self, jobs: Sequence[Job], where: str, expires: int, number: int = 0) -> Call:
        """The call that gives jobs of one private list back, to the ``front`` (the newest claim
        comes first) or the ``back``; for each 1, or 0 if it was gone. ``expires``: ms of x-expires
        (0: none); ``number``: greater than in its owner's earlier calls, 0 for somebody else's."""
        keys, owner, queue_list = self.keys, jobs[0].owner, jobs[0].queue_list
        names = [keys.private(owner, queue_list), keys.queue(queue_list), keys.recovered]
        names += [keys.stats, keys.running(owner), keys.probation(queue_list), keys.on_probation]
        names.append(keys.facts(owner))
        args: list[Any] = [queue_list, where, int(self.config.strike_window), expires, number]
        for job in jobs:
            names.append(keys.recoveries(digest(job.payload)))
            args += [job.payload, job.claim_id]
        # Carried out behind its successor it would come late.
        return Call("requeue", names, args, whole=bool(number))

    def give_back(self, jobs: Sequence[Job], expires: int) -> int:
        return sum(self.scripts.run(*self.requeue(jobs, "front", expires)))

    def in_flight(self, owner: str, queue_list: str, count: int = 0) -> list[Job]:
        """Jobs in one private list, newest claim first; all, or the first ``count``."""
        found = self.client.lrange(self.keys.private(owner, queue_list), 0, count - 1)
        return [Job(owner, queue_list, payload) for payload in found]

    def newest(self, owner: str, queue_list: str, *limits: int) -> list[bytes]:
        """Payloads of the newest claims: how many at most, and bytes, but one in any case, behind
        how many others."""
        return self.scripts.run("newest", [self.keys.private(owner, queue_list)], limits)

    def has(self, job: Job) -> bool:
        private = self.keys.private(job.owner, job.queue_list)
        return self.client.lpos(private, job.payload) is not None

    def has_jobs(self, groups: Iterable[tuple[str, Iterable[str]]]) -> list[bool]:
        """Whether a job is in flight in any of some lists, for each group of an owner's."""
        # The one without a name is never there; no group is empty so.
        keys = [[self.keys.private(o, name) for name in ["", *names]] for o, names in groups]
        return [*map(bool, self._at_once(("EXISTS", *some) for some in keys))]

    def size(self, owner: str, queue_list: str) -> int:
        return int(self.client.llen(self.keys.private(owner, queue_list)))

    def running(self, owner: str, *, excused: bool = False) -> Running:
        """What an owner had recorded; ``excused`` as in ``Running``."""
        ran = self._record(owner)
        at_death = int(ran.pop(RAN, 0))
        claim_ids = {name: id for id, name in ran.items()}
        return Running(tuple(ran.values()), claim_ids, excused, at_death)

    def unrecord(self, job: Job) -> None:
        self.client.hdel(self.keys.running(job.owner), job.claim_id)

    def forget_running(self, owner: str, held: Container[str]) -> None:
        """Remove what ``owner`` is said to run and does not hold; no claim may come meanwhile."""
        if stale := [id for id in self._record(owner) if id != RAN and id not in held]:
            self.client.hdel(self.keys.running(owner), *stale)

    def _record(self, owner: str) -> dict[str, str]:
        record = self.client.hgetall(self.keys.running(owner))
        return {id.decode(): name.decode() for id, name in record.items()}


def earlier_of(mark: Any) -> Counters | None:
    """Read the mark of a claimed job: 0, or its counts, each of which may be missing."""
    if not isinstance(mark, list):
        return None
    # Only a suspect's has the last one.
    fields = ("recoveries", "strikes", "requeues", "probation")
    return Counters.read(**dict(zip(fields, mark, strict=False)))
