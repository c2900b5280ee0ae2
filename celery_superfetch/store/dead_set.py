"""The dead set: dead-lettered jobs, with their messages, for a person to inspect, retry or delete.

To *dead-letter* a job is to move it here (in names of code: to kill it). An *owner* is a process
that claims jobs, a *reaper* one that finds dead owners and recovers their jobs. Both dead-letter
jobs: ``kill_call`` returns the call that does so, unsent, and ``strike_counters.py`` sends it. A
reaper's pass calls ``trim`` and ``sample``; an owner whose private list lacks a job calls
``contains``. ``app/dead_set.py``, for the command line, the console's page and
users' own code, finds, retries and deletes. A *notice* is the message of a task that announces a
dead job to its caller; that task uses ``awaits``, ``store_progress`` and ``announced``, in a
worker's pool process. The console's status reads counts and samples.

One script moves a job, so if the process dies, the job is wholly in one place. If it dies between
two batches of a delete or a retry, the later jobs stay in the dead set, and a person has to repeat
the command. If it dies during the retry of a job, the job is in the dead set or on its queue, the
old result of the job may be deleted, and the lock of the retry expires after a minute. If a process
dies after it has informed a caller and before ``announced``, the notice is recovered like any job,
and the caller is informed again.
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
from ..model.humanize import command
from ..model.job import digest, parse
from ..model.records import parsed_json, text_of, whole
from ..model.strikes import Recovery
from .database import Structure, chunks
from .dead_caps import Cap, Caps, cap_of
from .redis.call import Call

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Jobs that one kill drops at most, to make room for a large record. If more have to go, the next
#: kill or pass drops them.
DROPS_MOST = 1000
SAMPLE_JOBS, SAMPLE_BYTES = 20, 256 * 1024  # jobs, and bytes of them, that ``sample`` reads
DEAD_BATCH = 100  # jobs deleted or read in one script or command; bounds what each costs the server
#: Bytes of records after which a reply has no further record. A single record may be larger.
DEAD_READ_MAX_BYTES = 4 * 1024 * 1024
IDS_PER_COMMAND = 500  # ids read in one command: they are short
#: Characters of a UUID before its first hyphen. The id of a dead job is a digest and has no hyphen,
#: so a longer start of a UUID cannot be the start of such an id.
UUID_BEGIN_CHARS = 8
CANDIDATES_SHOWN = 10  # candidates that an error names
#: ms after which the lock of a retry expires. A retry first deletes the old results of its jobs
#: from Celery's result backend, and that may be slow.
RETRY_LOCK_MS = 60_000


class BeingRetried(Exception):
    """Refusal: a retry has the lock of the job. Either it puts the job on its queue in a moment, or
    its process has died, and the lock expires."""


class CapUsage(NamedTuple):
    """The use of one cap of the dead set."""

    cap: Cap
    jobs: int
    bytes: int  # of their records; a sum that scripts keep, and correct when no job is left


class Trimmed(NamedTuple):
    """The number of jobs that a pass dropped from under one cap."""

    cap: Cap
    old: int  # older than `dead_ttl`
    #: Too many, or of too many bytes; includes those that were dropped since the last pass when
    #: other jobs were dead-lettered.
    surplus: int


class DeadSetStore(Structure):
    """Dead-lettered jobs (``superfetch:dead``, ``superfetch:dead:jobs``), newest first. No command
    reads or moves more than a batch of them. A ``DeadFilter`` selects jobs."""

    def __len__(self) -> int:
        return int(self._read(self.client.zcard, self.keys.dead, empty=0))

    def count_of_app(self) -> int:
        """Return how many jobs count in the app's ``dead_limit``; all of them without an app."""
        name = self.config.app_name
        if not name:
            return len(self)
        return int(self._read(self.client.zcard, self.keys.dead_of(name), empty=0))

    def __iter__(self) -> Iterator[DeadJob]:
        return self.find()

    def died_since(self, time: int) -> int:
        """Return how many jobs died since a time (server ms)."""
        return int(self._read(self.client.zcount, self.keys.dead, time, "+inf", empty=0))

    def contains(self, ids: Sequence[str]) -> list[bool]:
        """Return for each id whether the dead set has a job with it."""
        rows = self._at_once([("HEXISTS", self.keys.dead_jobs, id) for id in ids])
        return [*map(bool, rows)]

    def page(
        self, first: int = 0, count: int = 50, **conditions: Unpack[Conditions]
    ) -> list[DeadJob]:
        """Return some of the jobs that meet the conditions, the newest first.

        Arguments:
            first: number of jobs to skip, from the newest on.
            count: number of jobs to return at most.
            conditions: ``task``, ``queue``, ``reason``, ``older_than``, ``newer_than``; none: all
                jobs.

        Raises:
            BadFilter: a condition is empty, or no job could meet them all.
        """
        if DeadFilter(**conditions) == DeadFilter() and count <= DEAD_BATCH:
            # By negative ranks: with ``desc`` redis-py would send ZREVRANGE, and users' ACLs would
            # have to allow one more command.
            at, end = -first - count, -first - 1
            return self._load(self._newest(self.keys.dead, at, end))
        return list(islice(self.find(**conditions), first, first + count))

    def ids(self) -> list[str]:
        """Return the ids of all jobs, those first that died first."""
        return [id.decode(errors="replace") for id, _ in reversed(self._rows())]

    def find(
        self, *, oldest_first: bool = False, **conditions: Unpack[Conditions]
    ) -> Iterator[DeadJob]:
        """Yield all jobs that meet the conditions now. A job that another process retries or
        deletes meanwhile may be left out.

        Arguments:
            oldest_first: begin with the job that died first.
            conditions: ``task``, ``queue``, ``reason``, ``older_than``, ``newer_than``; none: all
                jobs.

        Raises:
            BadFilter: a condition is empty, or no job could meet them all.
        """
        which = DeadFilter(**conditions)
        rows = self._rows(which)[:: -1 if oldest_first else 1]
        jobs = (job for some in chunks(rows, DEAD_BATCH) for job in self._load(some))
        return (job for job in jobs if which.takes(job, self.database.queue_of(job.queue_list)))

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
            matches = self._load(
                [row for row in self._rows() if row[0].startswith(start)][:DEAD_BATCH]
            )
            # A short text may be the start of one job's id and of another job's task id.
            if not matches or len(id) <= UUID_BEGIN_CHARS:
                named = [job for job in self if (job.task_id or "").startswith(id)]
                same = [job for job in named if job.task_id == id]
                matches += [job for job in same or named if job not in matches]
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = [
                printable(f"{job.id} {job.task or 'unparseable'}[{job.task_id}]") for job in matches
            ]
            remainder = (
                [f"and {len(names) - CANDIDATES_SHOWN} more"]
                if len(names) > CANDIDATES_SHOWN
                else []
            )
            rows = "\n  ".join(["", *names[:CANDIDATES_SHOWN], *remainder])
            raise JobNotFound(
                f"{id!r} matches {len(matches)} jobs of the dead set, give more of the id:{rows}"
            )
        raise JobNotFound(
            f"no job {id!r} in the dead set: it was retried, deleted, dropped at a limit, or "
            f"never there; `{command()} dead list` lists the jobs"
        )

    def exact(self, id: str) -> DeadJob | None:
        """Return the job with a whole id; None if there is none."""
        score = self._read(self.client.zscore, self.keys.dead, id, empty=None)
        rows = [(id.encode(), score or 0)]
        return next(iter(self._load(rows)), None)

    def exact_many(self, ids: Sequence[str]) -> dict[str, DeadJob]:
        """Return those of the jobs with these whole ids that are there, by id."""
        commands = [("ZSCORE", self.keys.dead, id) for id in ids]
        scores = self._at_once(commands, empty=None)
        rows = [(id.encode(), score) for id, score in zip(ids, scores, strict=True) if score]
        return {job.id: job for job in self._load([(id, float(at)) for id, at in rows])}

    def awaits(self, job: DeadJob, notice: str) -> bool:
        """Return whether the caller of a job still has to be informed, and the notice with this
        Celery id is the one to do so. Any producer can send a forged notice: it has another id, and
        is refused. If the job's record has no id of a notice, any notice is accepted, until the job
        is announced. Raises BeingRetried."""
        return (not job.notice or job.notice == notice) and self._check_notice(
            job, is_informed=False
        )

    def announced(self, job: DeadJob) -> None:
        """Record that the caller of a job was informed. If the job was retried meanwhile and has
        died again, its caller awaits another notice, and nothing is recorded."""
        self._check_notice(job, is_informed=True)

    def _check_notice(self, job: DeadJob, *, is_informed: bool) -> bool:
        """Return whether the caller of a job still awaits the notice of the record that was read;
        with ``is_informed`` record, in the same script, that it awaits none any more. Without it,
        raise BeingRetried if a retry has the job's lock."""
        names = [self.keys.unannounced, self.keys.dead_jobs, self._retry_lock(job)]
        args = [job.id, job.notice, int(is_informed)]
        answer = self.scripts.run("informed", names, args)
        if answer < 0:
            raise BeingRetried
        return bool(answer)

    def _retry_lock(self, job: DeadJob) -> str:
        return self.keys.lock(f"retry:{job.id}")

    def store_progress(self, job: DeadJob, progress: Progress) -> bool:
        """Store in a job's record how far its announcement has come (``Progress``). Return False if
        the job was retried, deleted or dropped, or has died again since it was read. The script
        compares the digest of the old record, so that a change by another process is not lost."""
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
        return sum(
            self.scripts.run("delete", self._names, some) for some in chunks(ids, DEAD_BATCH)
        )

    def purge(self) -> int:
        """Delete all jobs that are there now, for good; return how many there were. A job that dies
        meanwhile stays."""
        return self._delete([id for id, _ in self._rows()])

    def reserve(self, jobs: Sequence[DeadJob]) -> list[bool]:
        """Lock jobs for a retry, for a minute at most; return for each whether this call has the
        lock. A retry deletes the job's old result. Without the lock a slow second retry of the same
        job could delete the result of the run that the first retry has caused. And a notice could
        store a failure, which a caller gets although the job runs again: ``awaits`` refuses. If the
        process dies, the locks expire."""
        calls = [Call("lock", [self._retry_lock(job)], [RETRY_LOCK_MS]) for job in jobs]
        return [*map(bool, self.scripts.run_all(calls))]

    def release(self, jobs: Sequence[DeadJob]) -> None:
        """Release the locks of ``reserve``; ``put_back`` releases them itself."""
        if jobs:
            self.client.delete(*map(self._retry_lock, jobs))

    def put_back(self, jobs: Iterable[tuple[DeadJob, str, int]]) -> list[Any]:
        """Move jobs from the dead set to the end of a queue list each (its x-expires in ms; 0:
        none), in one round trip, a script for each; return of each whether it was still there, or
        the server's error."""
        return self.scripts.run_all([self.retry_call(*job) for job in jobs], errors=True)

    def retry_call(self, job: DeadJob, queue_list: str, expires: int) -> Call:
        """Return the call that moves one job back to a queue list."""
        keys, window = self.keys, int(self.config.strike_window)
        names = [*self._names, keys.queue(queue_list), keys.history(digest(job.payload))]
        names += [self._retry_lock(job), keys.has_history]
        args = [job.id, job.payload, expires, job.steps, window]
        return Call("retry", names, args)

    def kill_call(
        self, recovery: Recovery, expires: int = 0, *, marked: bool, notice: bytes | None = None
    ) -> Call:
        """Return the call that moves a job from its owner's private list to the dead set, and
        pushes its notice. Nothing is sent here.

        Arguments:
            recovery: the job, and the counters that the decision saw.
            expires: ms of the queue's x-expires (0: none).
            marked: whether the owner must be marked reaped; False: a live owner calls.
            notice: the message by which the job's caller is informed; empty: none could be made,
                and the job counts as not announced; None: the caller is not to be informed.
        """
        keys, job, cap = self.keys, recovery.job, cap_of(recovery, self.keys, self.config)
        names = [*self._names, keys.dead_dropped(self.config.app_name), cap.key]
        names += [keys.owner_record(job.owner), keys.private(job.owner)]
        names += [keys.history(recovery.digest), keys.queue(job.queue_list), keys.stats_rows]
        names += [keys.minutes, keys.minute_rows]
        dead = replace(DeadJob.of(recovery), notice=(notice and parse(notice).task_id) or "")
        record = dead.dump(cap.most_whole_bytes)
        # The number that the history on the server must have, or else the script refuses. This
        # recovery is not in it yet, unless the history has counted it already.
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
        args = [int(self.config.dead_ttl * 1000), DEAD_BATCH]
        for cap in caps:
            args += [cap.most_jobs, cap.most_bytes]
        counts = self.scripts.run("trim", [*names, *(cap.key for cap in caps)], args)
        return [Trimmed(cap, *counts) for cap, counts in zip(caps, chunks(counts, 2), strict=True)]

    def usage(self) -> list[CapUsage]:
        """Return what is kept under each cap of this app, and under that of junk. Without an app
        (a command that was given only a URL) the result is for the app that has most bytes of each
        kind."""
        caps = Caps.of(self.keys, self.config)
        if not self.config.app_name:
            caps = caps._replace(
                ran=self._fullest(caps.ran), never_ran=self._fullest(caps.never_ran)
            )
        names = [cap.key for cap in caps]
        counts = self._at_once([("ZCARD", name) for name in names], empty=0)
        none = [None] * len(names)
        sizes = self._read(self.client.hmget, self.keys.dead_bytes, names, empty=none)
        rows = zip(caps, counts, sizes, strict=True)
        return [CapUsage(cap, int(count), whole(size)) for cap, count, size in rows]

    def _fullest(self, cap: Cap) -> Cap:
        """Return the cap of the same kind, of that app which has the most bytes under it. ``cap``
        is that of an empty app name, so its key is the start of the keys of all apps."""
        sizes = self._read(self.client.hgetall, self.keys.dead_bytes, empty={})
        fitting = [
            (whole(size), name) for name, size in sizes.items() if name.startswith(cap.key.encode())
        ]
        return cap._replace(key=max(fitting)[1].decode(errors="replace")) if fitting else cap

    def sample(self, cap: Cap) -> list[DeadJob]:
        """Return some of the newest jobs under a cap, as many as one short script reads."""
        rows = self._newest(cap.key, -SAMPLE_JOBS, -1)
        return self._load_first(rows, SAMPLE_BYTES)[0] if rows else []

    def unannounced_count(self) -> int:
        """Return how many jobs have a caller that was not informed yet."""
        return int(self._read(self.client.scard, self.keys.unannounced, empty=0))

    def _newest(self, key: str, first: int, last: int) -> list[tuple[bytes, float]]:
        """Return some members of a ZSET by their (negative) ranks, the newest first."""
        rows = self._read(self.client.zrange, key, first, last, withscores=True, empty=[])
        return list(reversed(rows))

    def _scores(self) -> list[tuple[bytes, float]]:
        """Return the ids and times of death of all jobs, in any order."""
        return [*self.client.zscan_iter(self.keys.dead, count=IDS_PER_COMMAND)]

    def _rows(self, which: DeadFilter | None = None) -> list[tuple[bytes, float]]:
        """Return ids and times of death of all jobs, or of those of the right age, newest first."""
        # By ZSCAN: it finds each job that stays. If pages were read by rank, and a job left
        # meanwhile, the ranks would shift, and the next page would skip a job.
        least, most = (which or DeadFilter()).window(self.database.server_time())
        entries = self._read(self._scores, key=self.keys.dead, empty=[])
        rows = {id: score for id, score in entries if least <= score <= most}
        return sorted(rows.items(), key=lambda row: (row[1], row[0]), reverse=True)

    def _load(self, rows: Sequence[tuple[bytes, float]]) -> list[DeadJob]:
        jobs: list[DeadJob] = []
        while rows:
            batch, count = self._load_first(rows, DEAD_READ_MAX_BYTES)
            jobs += batch
            rows = rows[count:]
        return jobs

    def _load_first(
        self, rows: Sequence[tuple[bytes, float]], most_bytes: int
    ) -> tuple[list[DeadJob], int]:
        """Read the first few jobs by one script, until they have ``most_bytes``. Return those that
        are still there, and the number of rows that were read: at least one."""
        ids = [
            id for id, _ in rows[: DEAD_BATCH // 2]
        ]  # half: each job is two arguments of the script
        keys = [self.keys.dead_jobs] * len(ids)
        args = [most_bytes, *ids]
        records = self._read(
            self.scripts.run,
            "payloads",
            keys,
            args,
            key=self.keys.dead_jobs,
            empty=[None] * len(ids),
        )
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
