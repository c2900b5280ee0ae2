"""Private lists: claim, ack, requeue, and what is in flight."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from ..model.job import Claimed, Earlier, Job, digest
from .database import Database, Structure
from .wire.clients import LoneConnection
from .wire.scripts import Call

#: Bytes one claim takes at most, but for the job that passes the mark. It bounds the reply,
#: and so the time the server and the consumer's loop spend on one claim.
CLAIM_BYTES = 4 * 1024 * 1024

#: Held jobs that are looked at, and moved back, at a time.
PAGE = 100

#: The mark of a job that is no longer the caller's.
GONE = -1


class Claims(NamedTuple):
    """The outcome of one claim."""

    #: False: the owner is not registered (any more); nothing was claimed.
    registered: bool
    jobs: Sequence[Claimed] = ()
    #: For each job to confirm: the claim, or None when it is ours no longer.
    confirmed: Sequence[Claimed | None] = ()
    #: Queue list -> error text, where a list could not be read.
    errors: Sequence[tuple[str, str]] = ()
    #: Those that are recorded as running.
    started: Sequence[Claimed] = ()

    def fell_short(self, most: int) -> bool:
        """Whether the lists had less than was asked for."""
        jobs = self.jobs
        return len(jobs) < most and sum(len(c.job.payload) for c in jobs) < CLAIM_BYTES

    def reach(self, order: Sequence[str]) -> int:
        """How many of the lists it would have been enough to name."""
        return 1 + max(map(order.index, {claimed.job.queue_list for claimed in self.jobs}))


class PrivateLists(Structure):
    """Jobs in flight (``superfetch:private:<owner>:<queue list>``)."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._claim_ids = count(1)

    def job(self, owner: str, queue_list: str, payload: bytes) -> Job:
        """A job that this process has just claimed."""
        return Job(owner, queue_list, payload, self._claim_id())

    def _claim_id(self) -> str:
        return f"{next(self._claim_ids):x}"

    def claim(
        self,
        owner: str,
        lists: Sequence[str],
        most: int,
        turn: int,
        confirm: Sequence[Job] = (),
        starts: int = 0,
    ) -> Call:
        """The call that claims up to ``most`` jobs; ``claims`` reads its reply.

        Arguments:
            lists: queue lists in the order of claiming.
            turn: how many neighbouring lists are served one job each in turn (their queues
                are equals); 1 drains list after list.
            confirm: jobs from ``lists`` that a blocking read brought, to be checked for still
                being ours.
            starts: how many of them all, those to be confirmed first, run as soon as they are
                here; they are recorded as running.
        """
        keys = self.keys
        names = [keys.owners, keys.recovered, keys.running(owner), *map(keys.queue, lists)]
        cut, prefix = len(keys.prefix.encode()), keys.private(owner, "")
        args: list[Any] = [owner, most, CLAIM_BYTES, keys.recoveries_prefix, cut, prefix]
        args += [turn, starts, len(confirm)]
        for job in confirm:
            args += [lists.index(job.queue_list) + 1, job.payload, job.claim_id]
        args += [self._claim_id() for _ in range(min(starts, most))]
        return Call("claim", names, args)

    def claims(
        self, call: Call, lists: Sequence[str], confirm: Sequence[Job], reply: Any
    ) -> Claims:
        """Read the reply to ``claim``."""
        if reply is None:
            return Claims(registered=False)
        started, rows, *more = reply
        owner, ids = call.args[0], iter(call.args[9 + 3 * len(confirm) :])
        jobs = []
        for at in range(0, len(rows), 3):
            number, payload, mark = rows[at : at + 3]
            job = Job(owner, lists[number - 1], payload, next(ids, None) or self._claim_id())
            jobs.append(Claimed(job, earlier_of(mark)))
        claims = Claims(True, jobs, started=jobs[:started])
        if not more:
            return claims
        marks, errors = more
        confirmed = [
            None if mark == GONE else Claimed(job, earlier_of(mark))
            for job, mark in zip(confirm, marks, strict=True)
        ]
        failed = [
            (lists[int(errors[at]) - 1], errors[at + 1].decode(errors="replace"))
            for at in range(0, len(errors), 2)
        ]
        first = [*filter(None, confirmed), *jobs][:started]
        return claims._replace(confirmed=confirmed, errors=failed, started=first)

    def wait(self, connection: LoneConnection, owner: str, queue_list: str, timeout: int) -> None:
        """Send the claim that waits for a job; the reply is its payload, or None after so many s.

        Raises:
            redis.exceptions.RedisError: the connection broke.
        """
        queue, private = self.keys.queue(queue_list), self.keys.private(owner, queue_list)
        connection.send("BLMOVE", queue, private, "RIGHT", "LEFT", timeout)

    def claim_alone(self, owner: str, queue_list: str) -> Call:
        """The call that claims the next job on probation; its last argument is the claim id."""
        keys = self.keys
        return Call(
            "probation",
            [
                keys.owners,
                keys.on_probation,
                keys.running(owner),
                keys.probation(queue_list),
                keys.private(owner, queue_list),
            ],
            [owner, queue_list, keys.recoveries_prefix, self._claim_id()],
        )

    def ack(
        self,
        settled: Sequence[Claimed],
        starting: Mapping[Job, str] | None = None,
        aside: Container[Job] = (),
    ) -> Call:
        """The call that settles jobs, and records those that start in their place.

        The counters of those that were delivered before are cleared.

        Arguments:
            starting: job -> its digest.
            aside: those that may be held aside.
        """
        keys: list[str] = []
        counters: list[str] = []
        args: list[Any] = [len(settled)]
        for job, earlier in settled:
            held = job in aside
            keys += [self.keys.private(job.owner, job.queue_list), self.keys.running(job.owner)]
            args += [job.payload, int(earlier is not None), int(held), job.claim_id]
            if held:
                keys.append(self.keys.held(job.owner, job.queue_list))
            if earlier is not None:
                counters.append(self.keys.recoveries(digest(job.payload)))
        keys += counters
        for job, name in (starting or {}).items():
            keys.append(self.keys.running(job.owner))
            args += [job.claim_id, name]
        return Call("ack", keys, args)

    def requeue(self, jobs: Sequence[Job], where: str, expires: int, number: int = 0) -> Call:
        """The call that gives jobs of one private list back; for each 1, or 0 if it was gone.

        Arguments:
            jobs: of one owner and one queue list; for the front the newest claim first.
            where: ``front`` (claimed next) or ``back``.
            expires: ms of the queue's x-expires; 0 for none.
            number: greater than that of each earlier call of this owner's; 0 for somebody else's.
        """
        keys, first = self.keys, jobs[0]
        args: list[Any] = [first.queue_list, where, int(self.config.strike_window), expires, number]
        for job in jobs:
            args += [job.payload, job.claim_id]
        return Call(
            "requeue",
            [
                keys.private(first.owner, first.queue_list),
                keys.queue(first.queue_list),
                keys.recovered,
                keys.stats,
                keys.running(first.owner),
                keys.probation(first.queue_list),
                keys.on_probation,
                keys.held(first.owner, first.queue_list),
                keys.facts(first.owner),
                *(keys.recoveries(digest(job.payload)) for job in jobs),
            ],
            args,
        )

    def give_back(self, jobs: Sequence[Job], expires: int) -> int:
        """``requeue`` jobs of an owner that is gone, to the front; the number that were there."""
        return sum(self.scripts.ask(self.requeue(jobs, "front", expires)))

    def hold(self, jobs: Sequence[Job]) -> Call:
        """The call that moves jobs of one private list out of its way."""
        keys, first = self.keys, jobs[0]
        names = [
            keys.private(first.owner, first.queue_list),
            keys.held(first.owner, first.queue_list),
            keys.running(first.owner),
        ]
        return Call("hold", names, [arg for job in jobs for arg in (job.payload, job.claim_id)])

    def unhold(self, owner: str, queue_list: str, claim_ids: Sequence[str]) -> Call:
        """The call that moves held jobs of one private list back there."""
        names = [self.keys.held(owner, queue_list), self.keys.private(owner, queue_list)]
        return Call("unhold", names, claim_ids, whole=True)

    def held_pages(self, owner: str, queue_list: str) -> Iterator[list[Job]]:
        """Held jobs of one private list, some at a time; those moved back meanwhile are seen."""
        cursor, begun = 0, False
        while cursor or not begun:
            page: Any
            cursor, page = self.client.hscan(self.keys.held(owner, queue_list), cursor, count=PAGE)
            begun = True
            if page:
                yield [Job(owner, queue_list, payload, id.decode()) for id, payload in page.items()]

    def unhold_all(self, owner: str, queue_list: str) -> None:
        """Bring all held jobs back to their private list, of an owner that is gone."""
        pages = self.held_pages(owner, queue_list)
        # A hash has no order: that of the claims is in their ids, which are numbers.
        ids = sorted((job.claim_id for page in pages for job in page), key=lambda id: (len(id), id))
        for at in range(0, len(ids), PAGE):
            self.scripts.ask(self.unhold(owner, queue_list, ids[at : at + PAGE]))

    def in_flight(self, owner: str, queue_list: str, count: int = 0) -> list[Job]:
        """Jobs in one private list, newest claim first; all, or the first ``count``."""
        found: Any = self.client.lrange(self.keys.private(owner, queue_list), 0, count - 1)
        return [Job(owner, queue_list, payload) for payload in found]

    def newest(self, owner: str, queue_list: str, most: int, room: int) -> list[bytes]:
        """The payloads of the newest claims in one private list.

        Arguments:
            room: most bytes, but for the job that passes the mark.
        """
        name = self.keys.private(owner, queue_list)
        payloads: list[bytes] = self.scripts.run("newest", [name], [most, room])
        return payloads

    def has(self, job: Job) -> bool:
        """Whether a job is in its private list."""
        private: Any = self.keys.private(job.owner, job.queue_list)
        payload: Any = job.payload
        return self.client.lpos(private, payload) is not None

    def held(self, owner: str, queue_list: str) -> int:
        """How many are held aside."""
        return int(self.client.hlen(self.keys.held(owner, queue_list)))

    def has_jobs(self, groups: Iterable[tuple[str, Iterable[str]]]) -> list[bool]:
        """Whether there is a job in flight in any of some lists, for each group of an owner's."""
        with self.client.pipeline(transaction=False) as pipe:
            for owner, names in groups:
                # The one without a name is never there; no group is empty so.
                lists = ["", *names]
                kinds = self.keys.private, self.keys.held
                pipe.exists(*(key(owner, name) for key in kinds for name in lists))
            return [bool(there) for there in pipe.execute()]

    def sizes(self, owners: Iterable[tuple[str, Iterable[str]]]) -> dict[str, int]:
        """Jobs in flight of some owners, each given with its lists, in one round trip."""
        rows = [(owner, name) for owner, lists in owners for name in lists]
        with self.client.pipeline(transaction=False) as pipe:
            for owner, name in rows:
                pipe.llen(self.keys.private(owner, name))
                pipe.hlen(self.keys.held(owner, name))
            sizes: dict[str, int] = {}
            replies = iter(pipe.execute())
            for owner, _ in rows:
                sizes[owner] = sizes.get(owner, 0) + int(next(replies)) + int(next(replies))
        return sizes


def earlier_of(mark: Any) -> Earlier | None:
    """Read the mark of a claimed job: 0, or its counts, each of which may be missing."""
    if not isinstance(mark, list):
        return None
    recoveries, strikes, requeues = mark
    recorded = None if strikes is None else int(strikes)
    return Earlier(int(recoveries or 0), recorded, int(requeues or 0))
