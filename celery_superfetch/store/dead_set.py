"""The dead set: dead-lettered jobs, with their messages, for a person to inspect, retry or delete.

An *owner* is a process that claims jobs, a *reaper* one that finds dead owners and recovers their
jobs. Both dead-letter jobs: ``kill`` makes the call, and ``counters.py`` sends it. A reaper's pass
calls ``trim``. ``app/dead_set.py``, for the command line, the console's page and users' own code,
finds, retries and deletes. The task that announces a dead job to its caller uses ``awaits``,
``store_progress`` and ``announced``, in a worker's pool process. The console's status reads counts
and samples.

Each job is moved by one script: if the process dies, it is wholly in one place. Of several batches
the later ones are untouched. A retry that was under way leaves the job in the dead set or on its
queue, and its lock for a minute; the old result of the job may be deleted. If a process dies after
it has told a caller and before ``announced``, the caller is told again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import JobNotFound
from ..model.arguments import printable
from ..model.config import ANNOUNCE_TASK, DEAD_ID
from ..model.dead_job import FULL_ID, Conditions, DeadFilter, DeadJob, Progress
from ..model.job import digest, parse
from ..model.records import parsed_json, text_of, whole
from ..model.strikes import Recovery
from ..model.words import command
from .database import Structure, chunks
from .dead_caps import Cap, Caps, cap_of
from .redis.call import Call

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Jobs that one kill drops at most, to make room for a large record. If more have to go, the next
#: kill or pass drops them.
DROPS_MOST = 1000
SAMPLED, SAMPLE_BYTES = 20, 256 * 1024  # jobs, and bytes of them, that ``sample`` reads
BATCH = 100  # jobs deleted or read in one script or command; bounds what each costs the server
ROOM = 4 * 1024 * 1024  # bytes of records that are enough for one reply: one may be very large
IDS = 500  # ids read in one command: they are short
UUID_BEGIN = 8  # characters of a UUID before its first hyphen. A digest has no hyphen.
SHOWN = 10  # candidates that an error names
#: ms after which the lock of a retry expires. A retry first deletes the old results of its jobs
#: from Celery's result backend, and that may be slow.
RETRY_LOCK = 60_000


class Kept(NamedTuple):
    """What the dead set keeps under one cap."""

    cap: Cap
    jobs: int
    bytes: int  # of their records; a sum that scripts keep, corrected when the cap is empty


class Trimmed(NamedTuple):
    """The number of jobs that a pass dropped from under one cap."""

    cap: Cap
    old: int  # older than `dead_ttl`
    #: Too many, or of too many bytes; includes those that kills have dropped since the last pass.
    surplus: int


class DeadSet(Structure):
    """Killed jobs (``superfetch:dead``, ``superfetch:dead:jobs``), newest first. No command reads
    or moves more than a batch of them; where jobs are picked, it is by a ``DeadFilter``."""

    separator = "\x06\x16"  # kombu's own, between a queue's name and a priority step

    def __len__(self) -> int:
        return int(self.client.zcard(self.keys.dead))

    def of_app(self) -> int:
        """Return how many jobs count in the app's ``dead_limit``; all of them without an app."""
        name = self.config.app_name
        return int(self.client.zcard(self.keys.dead_of(name))) if name else len(self)

    def __iter__(self) -> Iterator[DeadJob]:
        return self.find()

    def died_since(self, time: int) -> int:
        """Return how many jobs died since a time (server ms)."""
        return int(self.client.zcount(self.keys.dead, time, "+inf"))

    def have(self, ids: Sequence[str]) -> list[bool]:
        """Return of each id whether a job is in the dead set under it."""
        rows = self._at_once([("HEXISTS", self.keys.dead_jobs, id) for id in ids])
        return [*map(bool, rows)]

    def page(
        self, first: int = 0, count: int = 50, **conditions: Unpack[Conditions]
    ) -> list[DeadJob]:
        """Return some of the jobs that meet the conditions, the newest first.

        Arguments:
            first: how many of the newest are skipped.
            count: how many there are at most.
            conditions: which jobs are meant; none: all of them.

        Raises:
            BadFilter: a condition is empty, or no job could meet them all.
        """
        if DeadFilter(**conditions) == DeadFilter() and count <= BATCH:
            # By negative ranks: with ``desc`` redis-py would send ZREVRANGE, and users' ACLs would
            # have to allow one more command.
            at, end = -first - count, -first - 1
            return self._load(self.client.zrange(self.keys.dead, at, end, withscores=True)[::-1])
        return list(islice(self.find(**conditions), first, first + count))

    def find(
        self, *, oldest_first: bool = False, **conditions: Unpack[Conditions]
    ) -> Iterator[DeadJob]:
        """Yield all jobs that meet the conditions now. A job that another process retries or
        deletes meanwhile may be left out.

        Arguments:
            oldest_first: those first that died first.
            conditions: which jobs are meant; none: all of them.

        Raises:
            BadFilter: a condition is empty, or no job could meet them all.
        """
        which = DeadFilter(**conditions)
        rows = self._rows(which)[:: -1 if oldest_first else 1]
        jobs = (job for some in chunks(rows, BATCH) for job in self._load(some))
        return (job for job in jobs if which.takes(job, self.separator))

    def get(self, id: str) -> DeadJob:
        """Return one job.

        Arguments:
            id: its id, or its Celery task id, or the start of either.

        Raises:
            JobNotFound: there is none, or more than one.
        """
        start, job = id.encode(), self.exact(id)
        matches = [job] if job else []
        if not matches and id and not FULL_ID.fullmatch(id):
            matches = self._load([row for row in self._rows() if row[0].startswith(start)][:BATCH])
            # So few characters may begin both the id of one job and the task id of another.
            if not matches or len(id) <= UUID_BEGIN:
                named = [job for job in self if (job.task_id or "").startswith(id)]
                same = [job for job in named if job.task_id == id]
                matches += [job for job in same or named if job not in matches]
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = [
                printable(f"{job.id} {job.task or 'unparseable'}[{job.task_id}]") for job in matches
            ]
            remainder = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
            rows = "\n  ".join(["", *names[:SHOWN], *remainder])
            raise JobNotFound(f"{id!r} fits {len(matches)} jobs of the dead set:{rows}")
        raise JobNotFound(
            f"no job {id!r} in the dead set: it was retried, deleted or dropped by the cap, "
            f"or never killed; `{command()} dead list` shows what is there"
        )

    def exact(self, id: str) -> DeadJob | None:
        """Return the job with a whole id; None if there is none."""
        rows = [(id.encode(), self.client.zscore(self.keys.dead, id) or 0)]
        return next(iter(self._load(rows)), None)

    def exact_many(self, ids: Sequence[str]) -> dict[str, DeadJob]:
        """Return those of the jobs with these whole ids that are there, by id."""
        scores = self._at_once(("ZSCORE", self.keys.dead, id) for id in ids)
        rows = [(id.encode(), score) for id, score in zip(ids, scores, strict=True) if score]
        return {job.id: job for job in self._load([(id, float(at)) for id, at in rows])}

    def awaits(self, job: DeadJob, notice: str) -> bool:
        """Return whether the caller of a job still has to be told, and by the notice with this
        Celery id. Any producer can send a forged notice: it has another id, and is refused. If the
        job's record has no id of a notice, each notice is accepted, until one was announced."""
        if job.notice and job.notice != notice:
            return False
        return bool(self.client.sismember(self.keys.unannounced, job.id))

    def announced(self, job: DeadJob) -> None:
        """Record that the job's notice has reached its caller."""
        self.client.srem(self.keys.unannounced, job.id)

    def store_progress(self, job: DeadJob, progress: Progress) -> bool:
        """Store in a job's record how far its announcement has come. Return False if the job was
        retried, deleted or dropped, or has died again since it was read."""
        keys = self.keys
        raw = self.client.hget(keys.dead_jobs, job.id)
        record = parsed_json(raw, dict[str, Any]()) if raw else {}
        if not raw or text_of(record.get("notice")) != job.notice:
            return False
        new = json.dumps({**record, **progress.as_record()})
        names = [keys.dead_jobs, keys.dead_caps, keys.dead_bytes]
        return bool(self.scripts.run("progress", names, [job.id, digest(raw), new]))

    def delete(self, *ids: str) -> int:
        """Delete jobs for good, by their whole ids; return how many were there."""
        return self._delete(ids)

    def _delete(self, ids: Sequence[str | bytes]) -> int:
        return sum(self.scripts.run("delete", self._names, some) for some in chunks(ids, BATCH))

    def purge(self) -> int:
        """Delete all jobs for good; return how many were there."""
        return self._delete([id for id, _ in self._rows()])

    def reserve(self, jobs: Sequence[DeadJob]) -> list[bool]:
        """Lock jobs for a retry, for a minute at most; return for each whether this call has the
        lock. A retry deletes the job's old result. If a second retry of the same job did so late,
        it would delete the result of the run that the first one has caused. If the process dies,
        the locks expire."""
        locks = [self.keys.lock(f"retry:{job.id}") for job in jobs]
        calls = [Call("lock", [lock], [RETRY_LOCK]) for lock in locks]
        return [*map(bool, self.scripts.run_all(calls))]

    def release(self, jobs: Sequence[DeadJob]) -> None:
        """Release the locks of ``reserve``; ``put_back`` releases them itself."""
        if jobs:
            self.client.delete(*(self.keys.lock(f"retry:{job.id}") for job in jobs))

    def put_back(self, jobs: Iterable[tuple[DeadJob, str, int]]) -> list[Any]:
        """Move jobs from the dead set to the end of a queue list each (its x-expires in ms; 0:
        none), in one round trip, a script for each; return of each whether it was still there, or
        the server's error."""
        return self.scripts.run_all([self.retry_call(*job) for job in jobs], errors=True)

    def retry_call(self, job: DeadJob, queue_list: str, expires: int) -> Call:
        """Return the call that moves one job back to a queue list."""
        keys, window = self.keys, int(self.config.strike_window)
        names = [*self._names, keys.queue(queue_list), keys.recoveries(digest(job.payload))]
        names += [keys.lock(f"retry:{job.id}"), keys.recovered]
        args = [job.id, job.payload, expires, job.steps, window]
        return Call("retry", names, args)

    def kill(
        self, recovery: Recovery, expires: int = 0, *, marked: bool, notice: bytes | None = None
    ) -> Call:
        """Return the call that moves a job from its owner's private list to the dead set, and
        pushes its notice.

        Arguments:
            recovery: the job, and the counters that the decision saw.
            expires: ms of the queue's x-expires (0: none).
            marked: whether the owner must be marked reaped; False: a live owner calls.
            notice: the message that tells the job's caller; empty: none could be made, and the job
                counts as not announced; None: the caller is not told.
        """
        keys, job, cap = self.keys, recovery.job, cap_of(recovery, self.keys, self.config)
        names = [*self._names, keys.dead_dropped(self.config.app_name), cap.key]
        names += [keys.facts(job.owner), keys.private(job.owner)]
        names += [keys.recoveries(recovery.digest), keys.queue(job.queue_list), keys.stats_rows]
        dead = replace(DeadJob.of(recovery), notice=(notice and parse(notice).task_id) or "")
        record = dead.dump(cap.most_whole_bytes)
        # As the history on the server has it: without this recovery, unless that is counted there.
        recoveries = recovery.recoveries - (not recovery.counted)
        args: list[Any] = [job.claim_id, int(marked), recoveries, recovery.digest, record]
        is_told = notice is not None and recovery.parsed and recovery.task != ANNOUNCE_TASK
        args += [cap.most_jobs, cap.most_bytes, DROPS_MOST]
        args += [int(is_told), job.queue_list, notice or b"", DEAD_ID, expires]
        args.append(self.database.counted_as(recovery.task))
        return Call("kill", names, args)

    def trim(self) -> list[Trimmed]:
        """Drop jobs that are too old, or too many for their cap; return the numbers for each cap of
        this app, and for that of junk. The passes of another app trim its own jobs, by its own
        options."""
        caps = Caps.of(self.keys, self.config)
        names = [*self._names, self.keys.dead_dropped(self.config.app_name)]
        args = [int(self.config.dead_ttl * 1000), BATCH]
        for cap in caps:
            args += [cap.most_jobs, cap.most_bytes]
        counts = self.scripts.run("trim", [*names, *(cap.key for cap in caps)], args)
        return [Trimmed(cap, *counts) for cap, counts in zip(caps, chunks(counts, 2), strict=True)]

    def kept(self) -> list[Kept]:
        """Return what is kept under each cap of this app, and under that of junk. Without an app
        (a command that was given a URL alone) it is the fullest cap of each kind."""
        caps = Caps.of(self.keys, self.config)
        if not self.config.app_name:
            caps = caps._replace(
                ran=self._fullest(caps.ran), never_ran=self._fullest(caps.never_ran)
            )
        names = [cap.key for cap in caps]
        *counts, sizes = self._at_once(
            [*(("ZCARD", name) for name in names), ("HMGET", self.keys.dead_bytes, *names)]
        )
        rows = zip(caps, counts, sizes, strict=True)
        return [Kept(cap, int(count), whole(size)) for cap, count, size in rows]

    def _fullest(self, cap: Cap) -> Cap:
        """Return the cap of the same kind, of any app, with the most bytes."""
        sizes = self.client.hgetall(self.keys.dead_bytes)
        fitting = [
            (whole(size), name) for name, size in sizes.items() if name.startswith(cap.key.encode())
        ]
        return cap._replace(key=max(fitting)[1].decode(errors="replace")) if fitting else cap

    def sample(self, cap: Cap) -> list[DeadJob]:
        """Return some of the newest jobs under a cap, as many as one short script reads."""
        rows = self.client.zrange(cap.key, -SAMPLED, -1, withscores=True)[::-1]
        return self._read(rows, SAMPLE_BYTES)[0] if rows else []

    def untold(self) -> int:
        """Return how many jobs have a notice that has not reached its caller yet."""
        return int(self.client.scard(self.keys.unannounced))

    def _rows(self, which: DeadFilter | None = None) -> list[tuple[bytes, float]]:
        """Return ids and times of death of all jobs, or of those of the right age, newest first."""
        # By ZSCAN: it finds each job that stays. If pages were read by rank, and a job left
        # meanwhile, the ranks would shift, and the next page would skip a job.
        least, most = (which or DeadFilter()).window(self.database.server_time())
        entries = self.client.zscan_iter(self.keys.dead, count=IDS)
        rows = {id: score for id, score in entries if least <= score <= most}
        return sorted(rows.items(), key=lambda row: (row[1], row[0]), reverse=True)

    def _load(self, rows: Sequence[tuple[bytes, float]]) -> list[DeadJob]:
        jobs: list[DeadJob] = []
        while rows:
            batch, count = self._read(rows, ROOM)
            jobs += batch
            rows = rows[count:]
        return jobs

    def _read(
        self, rows: Sequence[tuple[bytes, float]], most_bytes: int
    ) -> tuple[list[DeadJob], int]:
        """Read the first few jobs by one script, until they have ``most_bytes``. Return those that
        are still there, and the number of rows that were read: at least one."""
        ids = [id for id, _ in rows[: BATCH // 2]]  # half: the script gets a key and an id for each
        keys = [self.keys.dead_jobs] * len(ids)
        records = self.scripts.run("payloads", keys, [most_bytes, *ids])
        jobs = [
            DeadJob.load(id.decode(errors="replace"), record, score)
            for (id, score), record in zip(rows, records, strict=False)
            if record is not None
        ]
        return jobs, len(records)

    @property
    def _names(self) -> list[str]:
        keys = self.keys
        notes_on_jobs = [keys.dead_caps, keys.unannounced, keys.dead_bytes]
        return [keys.dead, keys.dead_jobs, *notes_on_jobs, keys.stats]
