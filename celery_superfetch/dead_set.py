"""The dead set: killed jobs, whole, for a person to look at and put back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from redis import Redis

from .config import Config
from .dead_job import FULL_ID, DeadFilter, DeadJob, dead_job
from .errors import JobNotFound
from .job import parse
from .keys import Keys
from .recovery import Recovery
from .scripts import Call, Scripts

__all__ = ["DeadJob", "DeadSet", "dead_job"]

#: Unparseable jobs the dead set holds at most: junk must not push out what can be retried.
JUNK_LIMIT = 1000

#: Jobs deleted or read in one script or command; bounds what each costs the server.
BATCH = 100

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


class DeadSet:
    """Killed jobs (``superfetch:dead``, ``superfetch:dead:jobs``), newest first.

    No command reads or moves more than a batch of them.
    """

    def __init__(
        self, client: Redis, keys: Keys, config: Config, separator: str = SEPARATOR
    ) -> None:
        self.client = client
        self.keys = keys
        self.config = config
        self.separator = separator
        self.scripts = Scripts(client)

    def kill(self, recovery: Recovery, reason: str, *, marked: bool) -> Call:
        """The call that moves a job from its private list to the dead set.

        Arguments:
            marked: the owner must be marked reaped (False: it lives and asks for itself).
        """
        keys, job = self.keys, recovery.job
        record = json.dumps(dead_job(recovery, reason).record())
        return Call(
            "kill",
            [
                keys.facts(job.owner),
                keys.private(job.owner, job.queue_list),
                keys.recoveries(recovery.digest),
                keys.dead,
                keys.dead_jobs,
                keys.dead_junk,
                keys.unannounced,
                keys.stats,
                keys.running(job.owner),
                keys.dead_overflow,
            ],
            [
                job.payload,
                int(marked),
                recovery.recoveries - 1,
                recovery.digest,
                record,
                self.config.dead_limit,
                int(not recovery.parsed),
                JUNK_LIMIT,
                job.claim_id,
            ],
        )

    # -- looking

    def size(self) -> int:
        """Number of jobs in the dead set."""
        return int(self.client.zcard(self.keys.dead))

    def page(self, first: int = 0, count: int = 50, which: DeadFilter = ALL) -> list[DeadJob]:
        """``count`` of the jobs that are meant, from the ``first`` newest on."""
        if not which.by_age_alone:
            return list(islice(self.find(which), first, first + count))
        least, most = self._window(which)
        jobs: list[DeadJob] = []
        for at in range(first, first + count, BATCH):
            number = min(BATCH, first + count - at)
            rows: Any = self.client.zrange(
                self.keys.dead,
                most,
                least,
                desc=True,
                byscore=True,
                offset=at,
                num=number,
                withscores=True,
            )
            jobs += self._load(rows)
            if len(rows) < number:
                break
        return jobs

    def ids(self, which: DeadFilter = ALL) -> list[tuple[bytes, float]]:
        """Ids and times of death of all jobs of the right age, newest first.

        By ZSCAN: what is there from its begin to its end is found, whatever others move
        meanwhile. By rank, each job that leaves would hide another.
        """
        least, most = self._window(which)
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
        if not ids:
            return []
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.zscore(self.keys.dead, id)
            scores = pipe.execute()
        return self._load(
            [(id.encode(), score or 0) for id, score in zip(ids, scores, strict=True)]
        )

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

    def retry(self, job: DeadJob, queue_list: str | None = None, expires: int = 0) -> bool:
        """Put a job back at the end of its queue, counters cleared; False if it was gone.

        Arguments:
            queue_list: another queue to put it on.
            expires: ms of the queue's x-expires; 0 for none.

        Raises:
            redis.exceptions.ResponseError: the queue's key holds something else.
        """
        call = self.revive(job, queue_list or job.queue_list, expires)
        return bool(self.scripts.ask(call))

    def revive(self, job: DeadJob, queue_list: str, expires: int) -> Call:
        """The call of ``retry``."""
        keys = self.keys
        return Call(
            "revive",
            [
                keys.dead,
                keys.dead_jobs,
                keys.dead_junk,
                keys.unannounced,
                keys.queue(queue_list),
                keys.recoveries(job.digest),
                keys.stats,
                keys.lock(f"retry:{job.id}"),
                keys.recovered,
            ],
            [job.id, job.payload, expires, self._forgiven(job)],
        )

    def _forgiven(self, job: DeadJob) -> int:
        """Seconds for which the strikes that a payload carries do not count; 0 if it has none."""
        return int(self.config.strike_window) if parse(job.payload).carried.strikes else 0

    def delete(self, *ids: str) -> int:
        """Delete jobs for good; the number that were there."""
        keys = self.keys
        names = [keys.dead, keys.dead_jobs, keys.dead_junk, keys.unannounced, keys.stats]
        return sum(
            int(self.scripts.run("forget", names, ids[at : at + BATCH]))
            for at in range(0, len(ids), BATCH)
        )

    def purge(self) -> int:
        """Delete all that are in the dead set now; their number."""
        return self.delete(*(id.decode() for id, _ in self.ids()))

    def trim(self) -> Dropped:
        """Drop some of what is older than ``dead_ttl`` or more than ``dead_limit``, counted.

        Returns:
            the numbers, with what kills have dropped since somebody was told last.
        """
        keys, config = self.keys, self.config
        names = [keys.dead, keys.dead_jobs, keys.dead_junk, keys.unannounced, keys.stats]
        limits = [int(config.dead_ttl * 1000), config.dead_limit, JUNK_LIMIT, BATCH]
        old, surplus = self.scripts.run("trim", [*names, keys.dead_overflow], limits)
        return Dropped(int(old), int(surplus))

    def import_(self, job: DeadJob, announced: bool) -> Call:
        """The call that puts an exported job in, as it was; see ``import.lua`` for its reply."""
        keys = self.keys
        return Call(
            "import",
            [keys.dead, keys.dead_jobs, keys.dead_junk, keys.unannounced, keys.stats],
            [
                job.id,
                json.dumps(job.record()),
                job.died_at,
                self.config.dead_limit,
                int(parse(job.payload).message is None),
                JUNK_LIMIT,
                int(not announced),
            ],
        )

    # -- telling

    def unannounced(self, count: int = BATCH) -> list[DeadJob]:
        """Some of the jobs whose callers have not been told."""
        members: Any = self.client.srandmember(self.keys.unannounced, count)
        ids = [id.decode() for id in members or ()]
        jobs = self.read(ids)
        for id in set(ids) - {job.id for job in jobs}:
            self.announced(id)
        return jobs

    def told(self, jobs: Sequence[DeadJob]) -> list[bool]:
        """Whether the callers of some jobs (a batch at most) were told."""
        if not jobs:
            return []
        ids = [job.id for job in jobs]
        flags: Any = self.client.smismember(self.keys.unannounced, ids)
        return [not flag for flag in flags]

    def announced(self, id: str) -> None:
        """Note that a job's caller has been told."""
        self.client.srem(self.keys.unannounced, id)

    def _window(self, which: DeadFilter) -> tuple[float, float]:
        if which.older_than is None and which.newer_than is None:
            return which.window(0)
        seconds, micros = self.client.time()
        return which.window(int(seconds) * 1000 + int(micros) // 1000)
