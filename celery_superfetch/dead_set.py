"""The dead set: killed jobs, whole, for a person to look at and put back."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redis import Redis

from .config import Config
from .errors import JobNotFound, WrongType
from .keys import Keys
from .recovery import Recovery
from .scripts import Call, Scripts

#: Unparseable jobs the dead set holds at most: junk must not push out what can be retried.
JUNK_LIMIT = 1000

#: Jobs deleted or read in one script or command; bounds what each costs the server.
BATCH = 100


@dataclass(frozen=True)
class DeadJob:
    """One job of the dead set."""

    id: str
    payload: bytes
    queue_list: str
    reason: str
    task: str | None
    task_id: str | None
    app_name: str
    owner: str
    strikes: int
    recoveries: int
    history: tuple[Mapping[str, Any], ...] = ()
    #: Time of death in server ms.
    died_at: int = 0

    @property
    def parsed(self) -> bool:
        """False for junk: there is no task to run and no caller to tell."""
        return self.task is not None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: text where the payload is text, else base64."""
        return {**_record(self), "id": self.id, "died_at": self.died_at}


class DeadSet:
    """Killed jobs (``superfetch:dead``, ``superfetch:dead:jobs``), newest first."""

    def __init__(self, client: Redis, keys: Keys, config: Config) -> None:
        self.client = client
        self.keys = keys
        self.config = config
        self.scripts = Scripts(client)

    def kill(self, recovery: Recovery, reason: str, *, marked: bool) -> Call:
        """The call that moves a job from its private list to the dead set.

        Arguments:
            marked: the owner must be marked reaped (False: it lives and asks for itself).
        """
        keys, job = self.keys, recovery.job
        record = json.dumps(_record(dead_job(recovery, reason)))
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

    def size(self) -> int:
        """Number of jobs in the dead set."""
        return int(self.client.zcard(self.keys.dead))

    def page(self, first: int = 0, count: int = 50) -> list[DeadJob]:
        """``count`` jobs from the ``first`` newest on."""
        rows: Any = self.client.zrange(
            self.keys.dead, first, first + count - 1, desc=True, withscores=True
        )
        if not rows:
            return []
        ids = [row[0] for row in rows]
        records: Any = self.client.hmget(self.keys.dead_jobs, ids)
        return [
            _load(id.decode(), record, int(score))
            for (id, score), record in zip(rows, records, strict=True)
            if record is not None
        ]

    def __iter__(self) -> Iterator[DeadJob]:
        first = 0
        while page := self.page(first, BATCH):
            yield from page
            first += BATCH

    def get(self, id: str) -> DeadJob:
        """One job, by its id in the dead set (or the start of it), or by its Celery task id.

        Raises:
            JobNotFound: no such job, or the start fits several.
        """
        record: Any = self.client.hget(self.keys.dead_jobs, id)
        if record is not None:
            score: Any = self.client.zscore(self.keys.dead, id)
            return _load(id, record, int(score or 0))
        found = [job for job in self if job.task_id == id or (id and job.id.startswith(id))]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(job.id for job in found[:5])
            raise JobNotFound(f"{id!r} fits {len(found)} jobs of the dead set: {names}")
        raise JobNotFound(
            f"no job {id!r} in the dead set: it was retried, deleted or dropped by the cap, "
            "or never killed; `superfetch dead list` shows what is there"
        )

    def check_queue(self, queue_list: str) -> None:
        """Refuse a queue that could not take a job.

        Raises:
            WrongType: its key holds something else.
        """
        kind: Any = self.client.type(self.keys.queue(queue_list))
        if kind not in (b"list", b"none"):
            raise WrongType(f"{queue_list!r} is no queue, it holds a {kind.decode()}")

    def retry(self, job: DeadJob, queue_list: str | None = None) -> bool:
        """Put a job back at the end of its queue, counters cleared; False if it was gone.

        Arguments:
            queue_list: another queue to put it on.

        Raises:
            redis.exceptions.ResponseError: the queue's key holds something else.
        """
        keys = self.keys
        return bool(
            self.scripts.run(
                "revive",
                [
                    keys.dead,
                    keys.dead_jobs,
                    keys.dead_junk,
                    keys.unannounced,
                    keys.queue(queue_list or job.queue_list),
                    keys.recoveries(job.id),
                    keys.stats,
                ],
                [job.id, job.payload],
            )
        )

    def delete(self, *ids: str) -> int:
        """Delete jobs for good; the number that were there."""
        deleted = 0
        for at in range(0, len(ids), BATCH):
            deleted += self._forget("dead_deleted", 0, *ids[at : at + BATCH])
        return deleted

    def purge(self) -> int:
        """Delete all that are in the dead set now; their number."""
        ids: Any = self.client.zrange(self.keys.dead, 0, -1)
        return self.delete(*(id.decode() for id in ids))

    def trim(self) -> int:
        """Drop some of the jobs that are older than ``dead_ttl``; counted as dropped."""
        return self._forget("dead_dropped", int(self.config.dead_ttl * 1000))

    def _forget(self, counter: str, age: int, *ids: str) -> int:
        keys = self.keys
        return int(
            self.scripts.run(
                "forget",
                [keys.dead, keys.dead_jobs, keys.dead_junk, keys.unannounced, keys.stats],
                [counter, age, BATCH, *ids],
            )
        )

    def unannounced(self, count: int = BATCH) -> list[DeadJob]:
        """Some of the jobs whose callers have not been told."""
        ids: Any = self.client.srandmember(self.keys.unannounced, count)
        jobs = []
        for id in ids or ():
            try:
                jobs.append(self.get(id.decode()))
            except JobNotFound:
                self.announced(id.decode())
        return jobs

    def announced(self, id: str) -> None:
        """Note that a job's caller has been told."""
        self.client.srem(self.keys.unannounced, id)


def dead_job(recovery: Recovery, reason: str) -> DeadJob:
    """What a killed job leaves in the dead set."""
    return DeadJob(
        id=recovery.digest,
        payload=recovery.job.payload,
        queue_list=recovery.job.queue_list,
        reason=reason,
        task=recovery.task,
        task_id=recovery.task_id,
        app_name=recovery.app_name,
        owner=recovery.job.owner,
        strikes=recovery.strikes,
        recoveries=recovery.recoveries,
        history=(*recovery.history, {"owner": recovery.job.owner, "reason": recovery.reason}),
    )


def _record(job: DeadJob) -> dict[str, Any]:
    try:
        payload, encoding = job.payload.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        payload, encoding = base64.b64encode(job.payload).decode(), "base64"
    return {
        "payload": payload,
        "encoding": encoding,
        "queue": job.queue_list,
        "reason": job.reason,
        "task": job.task,
        "task_id": job.task_id,
        "app": job.app_name,
        "owner": job.owner,
        "strikes": job.strikes,
        "recoveries": job.recoveries,
        "history": list(job.history),
    }


def _load(id: str, raw: bytes, died_at: int) -> DeadJob:
    record = json.loads(raw)
    text = record["payload"]
    return DeadJob(
        id=id,
        payload=base64.b64decode(text) if record["encoding"] == "base64" else text.encode(),
        queue_list=record["queue"],
        reason=record["reason"],
        task=record["task"],
        task_id=record["task_id"],
        app_name=record["app"],
        owner=record["owner"],
        strikes=record["strikes"],
        recoveries=record["recoveries"],
        history=tuple(record["history"]),
        died_at=died_at,
    )
