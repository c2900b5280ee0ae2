"""The dead set: killed jobs, whole, for a person to look at and put back."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ..errors import JobNotFound
from ..model.dead_job import FULL_ID, DeadFilter, DeadJob, dead_job
from ..model.job import parse
from ..model.strikes import Recovery
from .database import Database, Structure
from .wire.scripts import Call

__all__ = ["DeadJob", "DeadJobs", "dead_job"]

#: Unparseable jobs the dead set holds at most: junk must not push out what can be retried.
JUNK_LIMIT = 1000

#: Jobs deleted or read in one script or command; bounds what each costs the server.
BATCH = 100

#: Jobs of any size that are read at a time by somebody who may need none of them.
FEW = 10

#: Ids read in one command: they are short.
IDS = 500

#: ms after which a retry that was begun is given up for dead. It forgets the results of a batch
#: meanwhile, and a result backend may be slow.
RETRY_LOCK = 60_000

#: What kombu puts between a queue's name and a priority step, unless it is told otherwise.
SEPARATOR = "\x06\x16"

#: All jobs.
ALL = DeadFilter()


class Dropped(NamedTuple):
    """What the caps took, since the last who asked."""

    #: For their age.
    old: int
    #: Because there were too many.
    surplus: int


class DeadJobs(Structure):
    """Killed jobs (``superfetch:dead``, ``superfetch:dead:jobs``), newest first.

    No command reads or moves more than a batch of them.
    """

    def __init__(self, database: Database, separator: str = SEPARATOR) -> None:
        super().__init__(database)
        self.separator = separator

    def kill(self, recovery: Recovery, *, marked: bool) -> Call:
        """The call that moves a job from its private list to the dead set.

        Arguments:
            marked: the owner must be marked reaped (False: it lives and asks for itself).
        """
        keys, job = self.keys, recovery.job
        cap = keys.dead_of(recovery.app_name) if recovery.parsed else keys.dead_junk
        record = json.dumps(dead_job(recovery).record())
        return Call(
            "kill",
            [
                keys.facts(job.owner),
                keys.private(job.owner, job.queue_list),
                keys.recoveries(recovery.digest),
                keys.dead,
                keys.dead_jobs,
                keys.dead_caps,
                cap,
                keys.unannounced,
                keys.stats,
                keys.running(job.owner),
                keys.dead_overflow(self.config.app_name),
            ],
            [
                job.payload,
                int(marked),
                recovery.recoveries - (not recovery.counted),
                recovery.digest,
                record,
                self._caps.get(cap, 0),
                int(not recovery.parsed),
                job.claim_id,
            ],
        )

    # -- looking

    def size(self) -> int:
        """Number of jobs in the dead set."""
        return int(self.client.zcard(self.keys.dead))

    def page(self, first: int = 0, count: int = 50, which: DeadFilter = ALL) -> list[DeadJob]:
        """``count`` of the jobs that are meant, from the ``first`` newest on."""
        if which == ALL and count <= BATCH:
            at, end = first, first + count - 1
            rows: Any = self.client.zrange(self.keys.dead, at, end, desc=True, withscores=True)
            return self._load(rows)
        return list(islice(self.find(which), first, first + count))

    def ids(self, which: DeadFilter = ALL) -> list[tuple[bytes, float]]:
        """Ids and times of death of all jobs of the right age, newest first.

        By ZSCAN: what is there from its begin to its end is found, whatever others move
        meanwhile. By rank, each job that leaves would hide another.
        """
        least, most = which.window(self.database.server_time())
        found: Iterable[Any] = self.client.zscan_iter(self.keys.dead, count=IDS)
        rows = {id: score for id, score in found if least <= score <= most}
        return sorted(rows.items(), key=lambda row: (row[1], row[0]), reverse=True)

    def find(self, which: DeadFilter = ALL, *, oldest_first: bool = False) -> Iterator[DeadJob]:
        """The jobs that are meant: those that were there at the first step and are still.

        They are read a batch at a time, and may be moved or deleted between two steps.
        """
        rows = self.ids(which)
        if oldest_first:
            rows.reverse()
        for at in range(0, len(rows), BATCH):
            for job in self._load(rows[at : at + BATCH]):
                if which.takes(job, self.separator):
                    yield job

    def __iter__(self) -> Iterator[DeadJob]:
        return self.find()

    def read(self, ids: Sequence[str]) -> list[DeadJob]:
        """Those of the given jobs (a batch at most) that are there, by their whole ids."""
        scores = self._died_at(ids)
        return self._load(
            [(id.encode(), score or 0) for id, score in zip(ids, scores, strict=True)]
        )

    def _died_at(self, ids: Sequence[str]) -> list[float | None]:
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.zscore(self.keys.dead, id)
            return pipe.execute()

    def _load(self, rows: Sequence[tuple[bytes, float]]) -> list[DeadJob]:
        if not rows:
            return []
        records: Any = self.client.hmget(self.keys.dead_jobs, [id for id, _ in rows])
        return [
            DeadJob.load(id.decode(), json.loads(record), int(score))
            for (id, score), record in zip(rows, records, strict=True)
            if record is not None
        ]

    def get(self, id: str) -> DeadJob:
        """One job, by its id in the dead set (or the start of it), or by its Celery task id.

        Raises:
            JobNotFound: no such job, or the start fits several.
        """
        found = self.read([id])
        if not found and id and not FULL_ID.fullmatch(id):
            start = id.encode()
            meant = [row for row in self.ids() if row[0].startswith(start)]
            found = self._load(meant[:BATCH]) or [job for job in self if job.task_id == id]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(job.id for job in found[:5])
            raise JobNotFound(f"{id!r} fits {len(found)} jobs of the dead set: {names}")
        raise JobNotFound(
            f"no job {id!r} in the dead set: it was retried, deleted or dropped by the cap, "
            "or never killed; `superfetch dead list` shows what is there"
        )

    # -- moving

    def reserve(self, jobs: Sequence[DeadJob]) -> list[bool]:
        """Which of the jobs nobody else is about to retry; from now on nobody else is.

        Until they are retried, or for a minute. Whoever forgets a job's result needs it: late,
        he would forget the result of its next run.
        """
        with self.client.pipeline(transaction=False) as pipe:
            for job in jobs:
                pipe.set(self.keys.lock(f"retry:{job.id}"), 1, nx=True, px=RETRY_LOCK)
            return [bool(reply) for reply in pipe.execute()]

    def revive(self, job: DeadJob, queue_list: str, expires: int) -> Call:
        """The call that puts a job at the end of a queue, counters cleared; see ``revive.lua``.

        Arguments:
            expires: ms of the queue's x-expires; 0 for none.
        """
        keys = self.keys
        # The strikes that a payload carries do not count for so many seconds.
        forgiven = int(self.config.strike_window) if parse(job.payload).carried.strikes else 0
        return Call(
            "revive",
            [
                keys.dead,
                keys.dead_jobs,
                keys.dead_caps,
                keys.unannounced,
                keys.queue(queue_list),
                keys.recoveries(job.digest),
                keys.stats,
                keys.lock(f"retry:{job.id}"),
                keys.recovered,
            ],
            [job.id, job.payload, expires, forgiven],
        )

    def revive_all(self, jobs: Iterable[tuple[DeadJob, str, int]]) -> list[Any]:
        """``revive`` some in one round trip: for each 1, 0 if it was gone, or an error."""
        return self.scripts.run_all([self.revive(*one) for one in jobs], errors=True)

    def delete(self, *ids: str) -> int:
        """Delete jobs for good; the number that were there."""
        return sum(
            int(self.scripts.run("forget", self._names, ids[at : at + BATCH]))
            for at in range(0, len(ids), BATCH)
        )

    def purge(self) -> int:
        """Delete all that are in the dead set now; their number."""
        return self.delete(*(id.decode() for id, _ in self.ids()))

    def trim(self) -> Dropped:
        """Drop some of what is older than ``dead_ttl`` or more than ``dead_limit``, counted.

        Of this app's jobs and of junk: what another app keeps is for its own options to say.

        Returns:
            the numbers, with what kills have dropped since somebody was told last.
        """
        overflow = self.keys.dead_overflow(self.config.app_name)
        old, surplus = self.scripts.run(
            "trim",
            [*self._names, overflow, *self._caps],
            [int(self.config.dead_ttl * 1000), BATCH, *self._caps.values()],
        )
        return Dropped(int(old), int(surplus))

    @property
    def _names(self) -> list[str]:
        keys = self.keys
        return [keys.dead, keys.dead_jobs, keys.dead_caps, keys.unannounced, keys.stats]

    @property
    def _caps(self) -> dict[str, int]:
        """The caps that are ours to keep -> the most jobs under each."""
        own = self.keys.dead_of(self.config.app_name)
        return {own: self.config.dead_limit, self.keys.dead_junk: JUNK_LIMIT}

    # -- telling

    def untold(self) -> int:
        """Number of jobs whose callers have not been told."""
        return int(self.client.scard(self.keys.unannounced))

    def unannounced(self, known: Container[str] = ()) -> Iterator[DeadJob]:
        """Some of the jobs whose callers have not been told, a few at a time: they may be large.

        Arguments:
            known: ids of those that need not be read.
        """
        members: Any = self.client.srandmember(self.keys.unannounced, BATCH)
        ids = [id for member in members or () if (id := member.decode()) not in known]
        rows = [(id.encode(), score) for id, score in zip(ids, self._died_at(ids), strict=True)]
        there = [(id, score) for id, score in rows if score is not None]
        for id, score in rows:
            if score is None:
                self.announced(id.decode())
        for at in range(0, len(there), FEW):
            yield from self._load(there[at : at + FEW])

    def announced(self, id: str) -> None:
        """Note that a job's caller has been told."""
        self.client.srem(self.keys.unannounced, id)
