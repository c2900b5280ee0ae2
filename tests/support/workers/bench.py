"""One database with all structures on it, and owners of any fate to put into its registry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Protocol, cast

import redis

from celery_superfetch.model.config import Config
from celery_superfetch.model.dead_job import DeadJob
from celery_superfetch.model.job import Claimed, Job, claim_id, digest, parse
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.process import ProcessImage, mint_owner, start_time
from celery_superfetch.model.strikes import Blame, Counters, Limits, Recovery
from celery_superfetch.reaper.reaper import Reaper
from celery_superfetch.signals import LostJob
from celery_superfetch.store.database import Database
from celery_superfetch.store.dead_set import DeadSetStore
from celery_superfetch.store.owner_registry import OwnerRegistry
from celery_superfetch.store.parked_jobs import ParkedJobs
from celery_superfetch.store.paused_queues import PausedQueues
from celery_superfetch.store.private_lists import WAITS, Claims
from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.stats import Stats
from celery_superfetch.store.strike_counters import StrikeCounters
from support.driver import Driver


def payload(name: object, queue: str = "mail", task: str = "shop.note", **headers: Any) -> bytes:
    """A job as kombu writes it; `name` is its id."""
    message = {
        "body": "W1tdLCB7fSwge31d",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"task": task, "id": str(name), **headers},
        "properties": {
            "correlation_id": str(name),
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": f"tag-{name}",
        },
    }
    return json.dumps(message).encode()


def ended_process() -> ProcessImage:
    """A process of this host that was started, killed and waited for: its pid is gone."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    image = image_of(child.pid)
    child.kill()
    child.communicate()
    return image


def image_of(pid: int) -> ProcessImage:
    """The process `pid` of this host, as it would have registered itself."""
    return replace(
        ProcessImage.current(), pid=pid, start_time=start_time(pid) or "", image=f"image-{pid}"
    )


def elsewhere(host: str = "elsewhere", pid: int = 1) -> ProcessImage:
    """A process that nobody here can look at."""
    return ProcessImage(host, pid, "4711", "another-boot", "another-namespace", f"image-{host}")


class Living(Protocol):
    """An owner that is a process, and no record of one."""

    @property
    def name(self) -> str: ...


Named = OwnerRecord | Living


def trimmed(dead_set: DeadSetStore) -> tuple[int, int]:
    """Trim a dead set: how many were too old, and how many too many."""
    rows = dead_set.trim()
    return sum(row.old for row in rows), sum(row.surplus for row in rows)


def name_of(owner: str | Named) -> str:
    if isinstance(owner, str):
        return owner
    return owner.owner if isinstance(owner, OwnerRecord) else owner.name


def lost_job(job: Job) -> LostJob:
    """What receivers are told of it."""
    known = parse(job.payload)
    return LostJob(job.owner, job.queue_list, job.payload, known.task, known.task_id)


def settling(driver: Driver) -> tuple[int, int]:
    """How many of its jobs are on their way out: acked, and given back."""
    return driver.settled_count, driver.returning_count


class Bench:
    """The structures of one database under one configuration."""

    def __init__(self, client: redis.Redis, **options: Any) -> None:
        self.client = client
        self.config = Config(**{"app_name": "shop", **options})
        self.database = Database(client, self.config)
        self.database.is_registered = lambda task: True
        self.keys, self.scripts = self.database.keys, self.database.scripts
        self.registry = OwnerRegistry(self.database)
        self.recoveries = StrikeCounters(self.database)
        self.dead_set = DeadSetStore(self.database)
        self.parked, self.stats = ParkedJobs(self.database), Stats(self.database)
        self.paused = PausedQueues(self.database)
        self.driver = Driver.over(self.database)
        self.lists = self.driver.lists  # an owner's claims are numbered in one place
        self._numbers = count(1)

    def reaper(self, **options: Any) -> Reaper:
        return Reaper(self.database, **options)

    def run(self, call: Call) -> Any:
        return self.scripts.run(*call)

    # -- owners

    def owner(
        self,
        process: ProcessImage | None = None,
        lists: Mapping[str, int] | Iterable[str] = ("mail",),
        register: bool = True,
        **record: Any,
    ) -> OwnerRecord:
        """An owner, registered unless told otherwise: of this very process if no other is given."""
        image = process or ProcessImage.current()
        queue_lists = dict(lists) if isinstance(lists, Mapping) else dict.fromkeys(lists, 0)
        made = OwnerRecord.of_process(mint_owner(image), image, self.config).with_(
            lists=queue_lists, **record
        )
        if register:
            assert self.registry.register(made).status == "ok"
        return made

    def dead_owner(
        self,
        jobs: Sequence[bytes] = (),
        queue: str = "mail",
        running: Sequence[bytes] = (),
        **record: Any,
    ) -> OwnerRecord:
        """An owner of this host whose process is gone, with jobs it has claimed, oldest first.

        Arguments:
            running: those among them that it had started.
        """
        owner = self.owner(record.pop("process", None) or ended_process(), **record)
        given = {job.payload: job for job in self.give(owner.owner, queue, jobs)}
        for job in running:
            self.run_one(given[job])
        return owner

    def orphan(self, *queues: str) -> None:
        """What waits there was claimed by somebody who is dead."""
        for queue in queues:
            jobs = self.queue(queue)
            self.client.delete(queue)
            self.dead_owner(jobs, queue, lists=[queue])

    def untold(self) -> list[DeadJob]:
        """Killed jobs whose callers have not been told yet."""
        ids = cast("set[bytes]", self.client.smembers(self.keys.unannounced))
        jobs = [self.dead_set.exact(id.decode()) for id in ids]
        return [job for job in jobs if job is not None]

    def on_probation(self, queue: str = "mail") -> list[bytes]:
        """What waits on probation, in the order of its turns."""
        return self._list(self.keys.probation(queue))[::-1]

    def give(self, owner: str | Named, queue: str, jobs: Sequence[bytes]) -> list[Job]:
        """Jobs that `owner` has claimed from `queue`, oldest first."""
        name = name_of(owner)
        given = [Job(name, queue, raw, claim_id(next(self._numbers), queue)) for raw in jobs]
        for job in given:
            fields = {job.claim_id: job.payload, WAITS + job.claim_id: b""}
            self.client.hset(self.keys.private(name), mapping=fields)
        return given

    def run_one(self, job: Job) -> None:
        """Have one of them run."""
        self.client.hdel(self.keys.private(job.owner), WAITS + job.claim_id)

    def land(self, owner: str | Named, queue: str, *payloads: bytes) -> None:
        """Jobs that blocking reads of `owner` have let land, oldest first."""
        self.client.lpush(self.keys.landing(name_of(owner), queue), *payloads)

    def score(self, owner: str | Named) -> int:
        """When an owner was last heard."""
        return self.registry.owners()[name_of(owner)]

    def record(self, owner: str | Named) -> OwnerRecord:
        """What the server has of an owner."""
        name = name_of(owner)
        return self.registry.records([name])[name]

    def age(self, record: OwnerRecord, ms: int) -> int:
        """Set an owner's last heartbeat back by `ms`; its new score."""
        score = self.score(record) - ms
        self.client.zadd(self.keys.owners, {record.owner: score})
        return score

    def mark(self, owner: str | Named, reason: str = "gone") -> OwnerRecord | None:
        """Take an owner for dead, as a reaper does that has judged it by its last heartbeat."""
        known = self.record(owner).with_(connections=())  # it is not cut off
        return self.registry.mark(known, self.score(owner), 60, reason)

    # -- queues

    def push(self, queue: str, *payloads: bytes) -> None:
        """Publish, as a stock producer does."""
        if payloads:
            self.client.lpush(self.keys.queue(queue), *payloads)

    def queue(self, queue: str = "mail") -> list[bytes]:
        """What waits, in the order in which it is going to be claimed."""
        return self._list(self.keys.queue(queue))[::-1]

    def private(self, owner: str | Named | None = None, queue: str = "mail") -> list[bytes]:
        """What an owner holds from `queue`, newest claim first."""
        return [job.payload for job in self.held(owner) if job.queue_list == queue]

    def held(self, owner: str | Named | None = None) -> list[Job]:
        """What an owner has claimed, the newest first: the only one there is, if none is named."""
        if owner is None:
            [owner] = self.registry.owners()
        name = name_of(owner)
        claims = self.lists.held(name).claims
        return self.lists.jobs(name, claims, 2**30)[0] if claims else []

    def landed(self, owner: str | Named, queue: str = "mail") -> list[bytes]:
        """What landed for an owner and has no name, the newest first."""
        return self._list(self.keys.landing(name_of(owner), queue))

    def _list(self, key: str) -> list[bytes]:
        return cast("list[bytes]", self.client.lrange(key, 0, -1))

    def claim(
        self,
        owner: str | Named,
        lists: Sequence[str] = ("mail",),
        most: int = 10,
        turn: int = 1,
        landed: Sequence[str] = (),
        starts: int = 0,
    ) -> Claims:
        call = self.lists.claim_call(name_of(owner), lists, most, turn, landed, starts)
        return self.lists.read_claims(call, lists, self.run(call))

    def claimed(self, owner: OwnerRecord, *payloads: bytes, queue: str = "mail") -> list[Claimed]:
        """Publish and claim jobs."""
        self.push(queue, *payloads)
        claims = self.claim(owner, [queue], most=len(payloads))
        assert [claimed.job.payload for claimed in claims.jobs] == list(payloads)
        return list(claims.jobs)

    def ack(self, owner: str | Named, *settled: Claimed, starting: Sequence[Job] = ()) -> int:
        """Ack jobs, and record others as running; return 0 if the server had nothing of that."""
        plain = [job for job, counters in settled if not counters]
        counted = [job for job, counters in settled if counters]
        found = 0
        if plain or starting:
            found += self.run(self.lists.settle(name_of(owner), plain, starting))
        if counted:
            found += self.run(self.lists.settle_counted(name_of(owner), counted))
        return found

    def requeue(self, *jobs: Job, where: str = "front", expires: int = 0) -> int:
        """Give jobs of one owner and queue list back; how many went."""
        return len(jobs) - len(self.run(self.lists.requeue(jobs, where, expires)))

    def take(
        self,
        owner: str | Named,
        *payloads: bytes,
        queue: str = "mail",
        most: int = 100,
        starts: int = 0,
    ) -> list[Claimed]:
        """Publish jobs, and claim what waits: they are in flight in this process."""
        self.push(queue, *payloads)
        return list(self.driver.claim(name_of(owner), [queue], most, 1, [], starts).jobs)

    def hand_over(self, claimed: Claimed) -> float:
        """Give a job to a pool; until when it may begin."""
        return self.driver.start(claimed.job)

    def recorded(self, owner: OwnerRecord) -> list[str]:
        """Digests of what the server has as running."""
        running = self.lists.held(owner.owner).running
        return sorted(digest(j.payload) for j in self.held(owner) if j.claim_id in running)

    # -- jobs

    def killed(self, *payloads: bytes, queue: str = "mail", reason: str = "gone") -> list[DeadJob]:
        """Jobs that died, one after the other, as their living owner would have it."""
        jobs = []
        for job in self.give("elsewhere|1|nonce", queue, payloads):
            recovery = self.recovery(job, reason=reason)
            before = self.client.zrange(self.keys.dead, 0, -1)
            reply, *_ = self.run(self.dead_set.kill_call(recovery, marked=False, notice=b""))
            assert reply == b"ok"
            [id] = set(self.client.zrange(self.keys.dead, 0, -1)) - set(before)
            jobs.append(self.dead_set.get(id.decode()))
        return jobs

    def retry(self, job: DeadJob, queue_list: str = "", expires: int = 0) -> bool:
        """Put a dead job back on its queue, or on another."""
        call = self.dead_set.retry_call(job, queue_list or job.queue_list, expires)
        return bool(self.run(call))

    def die_at(self, job: DeadJob, ms: float) -> None:
        """Give a dead job another time of death."""
        cap = self.client.hget(self.keys.dead_caps, job.id)
        for index in (self.keys.dead, cap):
            self.client.zadd(index, {job.id: ms}, xx=True)

    def recovery(self, job: Job, counters: Counters | None = None, **changes: Any) -> Recovery:
        """The recovery of a job as a reaper would build it."""
        details: dict[str, Any] = {"reason": "gone", "app_name": self.config.app_name, **changes}
        details.setdefault("blame", Blame.EXACT)
        details.setdefault("limits", Limits.of(self.config))
        return Recovery.of(job, parse(job.payload), counters or self.counters(job), **details)

    def counters(self, job: Job | bytes) -> Counters:
        raw = job if isinstance(job, bytes) else job.payload
        return self.recoveries.counters([digest(raw)])[0]

    def stat(self, name: str) -> int:
        return int(cast("bytes", self.client.hget(self.keys.stats, name)) or 0)

    def key_names(self) -> set[str]:
        return {key.decode() for key in cast("list[bytes]", self.client.keys("*"))}
