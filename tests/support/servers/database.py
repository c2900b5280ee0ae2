"""What an operator sees of the jobs in a database, with keys spelled by hand: the eyes of tests."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import redis

from support.waiting import eventually

OWN = "superfetch:"
NOTES = (b"w", b"s")  # how the names of those begin that stand beside claims


def name_of(payload: bytes) -> str:
    """The first argument of a job: the name by which the ledger knows it."""
    body = json.loads(base64.b64decode(json.loads(payload)["body"]))
    return str(body[0][0])


class Database:
    """One broker database: its queues, its owners, and what each holds."""

    def __init__(self, client: redis.Redis | redis.RedisCluster[Any], prefix: str = "") -> None:
        self.client: Any = client
        self.prefix = prefix  # the app's ``global_keyprefix``; names here are without it

    # -- queues

    def waiting(self, queue: str = "celery") -> list[str]:
        """Names of the jobs on a queue, next to be claimed first."""
        return [name_of(raw) for raw in reversed(self._list(queue))]

    def length(self, queue: str = "celery") -> int:
        """Jobs on a queue."""
        return cast("int", self.client.llen(self.prefix + queue))

    def parked(self, queue: str = "celery") -> list[str]:
        """Names of the jobs that wait for their time, next to be due first."""
        members = cast(
            "list[bytes]", self.client.zrange(f"{self.prefix}{OWN}parked:{queue}", 0, -1)
        )
        return [name_of(member.partition(b"\n")[2]) for member in members]

    def on_probation(self) -> list[str]:
        """Names of the jobs that wait on probation, next to run alone first."""
        return [name_of(raw) for raw in reversed(self._list(f"{OWN}probation:celery"))]

    def suspect(self, raw: bytes, queue: str) -> None:
        """Put a job on probation, as two deaths in company would."""
        counters = {"strikes": 2, "recoveries": 2, "solo_runs": 1}
        own = self.prefix + OWN
        self.client.hset(f"{own}history:{hashlib.sha1(raw).hexdigest()}", mapping=counters)
        self.client.set(f"{own}has_history", 1)
        self.client.lpush(f"{own}probation:{queue}", raw)
        self.client.sadd(f"{own}probation", queue)

    def rest(self) -> dict[str, str]:
        """The latest quiesce for what is on probation: owner, since, until, next."""
        return {name.decode(): raw.decode() for name, raw in self._hash(f"{OWN}quiesce").items()}

    # -- owners

    def owners(self) -> list[str]:
        """Registered owners, longest silent first."""
        rows = cast("list[bytes]", self.client.zrange(f"{self.prefix}{OWN}owners", 0, -1))
        return [row.decode() for row in rows]

    def owner_of(self, job: str) -> str:
        """Who holds the job `job`; empty when nobody does."""
        for owner, jobs in self.held().items():
            if job in jobs:
                return owner
        return ""

    def heard(self, owner: str) -> int:
        """An owner's last heartbeat, in ms of the server; 0 when it is not registered."""
        score = self.client.zscore(f"{self.prefix}{OWN}owners", owner)
        return int(cast("float | None", score) or 0)

    def heard_of(self, owners: Iterable[str]) -> dict[str, int]:
        return {owner: self.heard(owner) for owner in owners}

    def wait_heard(self, since: Mapping[str, int]) -> None:
        """Until each owner is heard once more than in what ``heard_of`` said."""
        for owner, at in since.items():
            message = f"{owner} is heard; registered are {self.owners()}"
            eventually(lambda o=owner, at=at: self.heard(o) > at, message=message)

    def fact(self, owner: str, name: str) -> str:
        """One field of the record of an owner, reaped or not."""
        return self._hash(f"{OWN}owner:{owner}").get(name.encode(), b"").decode()

    def held(self) -> dict[str, list[str]]:
        """Owner -> names of its jobs in flight, of each queue list the oldest claim first; then
        what landed."""
        held: dict[str, list[str]] = {}
        for owner, claims in self._claims().items():
            order = sorted(claims, key=lambda id: (id.partition(b":")[2], id))
            held[owner] = [name_of(claims[id]) for id in order if not id.startswith(NOTES)]
        return held

    def settled(self) -> bool:
        """Whether nothing waits and nothing is in flight: asked twice of the latter, since between
        two looks a job may go from the one owner to its queue, and from there to another."""
        return not (self.held() or self.length() or self.held())

    def running(self) -> list[str]:
        """Names of the jobs in private lists that are recorded as running."""
        held = self._claims().values()
        return [
            name_of(claims[id])
            for claims in held
            for id in claims
            if not id.startswith((*NOTES, b"~")) and b"w" + id not in claims
        ]

    def notes(self) -> list[bytes]:
        """What is noted beside some claims, whatever became of them."""
        return [id for claims in self._claims().values() for id in claims if id.startswith(NOTES)]

    def private_lists(self) -> list[str]:
        """The keys of all private lists that are not empty, and of those where jobs landed."""
        return sorted(self.keys(f"{OWN}private:*") + self.keys(f"{OWN}landing:*"))

    def _claims(self) -> dict[str, dict[bytes, bytes]]:
        """Owner -> its private list, and what landed, as of one moment: jobs move in one."""
        # In a cluster, where a transaction names no pattern, by one look before and one after.
        clustered = isinstance(self.client, redis.RedisCluster)
        while True:
            names = self.private_lists()
            with self.client.pipeline(transaction=not clustered) as pipe:
                for name in names:
                    landing = name.startswith(f"{OWN}landing:")
                    (pipe.lrange if landing else pipe.hgetall)(
                        self.prefix + name, *([0, -1] if landing else [])
                    )
                for kind in () if clustered else ("private", "landing"):
                    pipe.keys(f"{self.prefix}{OWN}{kind}:*")
                contents = pipe.execute()
            keys = [] if clustered else [key.decode() for found in contents[-2:] for key in found]
            now = sorted(key.removeprefix(self.prefix) for key in keys)
            if (self.private_lists() if clustered else now) == names:
                break
        found: dict[str, dict[bytes, bytes]] = {}
        for name, content in zip(names, contents, strict=False):
            owner, _, queue_list = name.removeprefix(OWN).partition(":")[2].partition(":")
            if isinstance(content, list):  # behind those that have a name
                ids = (f"~{number:04}:{queue_list}".encode() for number in range(len(content)))
                content = dict(zip(ids, reversed(content), strict=True))
            found.setdefault(owner, {}).update(content)
        return found

    def keys(self, pattern: str) -> list[str]:
        """Names of keys."""
        found = self.client.scan_iter(match=self.prefix + pattern, count=1000)
        return sorted(key.decode().removeprefix(self.prefix) for key in found)

    def contents(self, key: str) -> list[Any]:
        """What a list or a hash holds."""
        kind = cast("bytes", self.client.type(self.prefix + key))
        return self._list(key) if kind == b"list" else list(self._hash(key).items())

    # -- recoveries and the dead set

    def strikes(self) -> dict[str, tuple[int, str]]:
        """Name of each job in the queue, or on probation -> its strikes, and what the last was."""
        found = {}
        for raw in (*self._list("celery"), *self._list(f"{OWN}probation:celery")):
            row = self._hash(f"{OWN}history:{hashlib.sha1(raw).hexdigest()}")
            history = json.loads(row.get(b"history", b"[]"))
            # A connection that dies a moment after its process may claim, and lose, it once more.
            strikes = [entry["strike"] for entry in history if entry["strike"]]
            found[name_of(raw)] = (int(row.get(b"strikes", 0)), "".join(strikes[-1:]))
        return found

    def counters(self) -> list[dict[str, Any]]:
        """The counters of all jobs that have some."""
        return [
            {field.decode(): value.decode() for field, value in self._hash(key).items()}
            for key in self.keys(f"{OWN}history:*")
        ]

    def dead(self) -> list[dict[str, Any]]:
        """Records of the dead set."""
        return [json.loads(record) for record in self._hash(f"{OWN}dead:jobs").values()]

    def stat(self, counter: str) -> int:
        """One of the counters for `status`."""
        return int(self._hash(f"{OWN}stats").get(counter.encode(), 0))

    def _list(self, key: str) -> list[bytes]:
        return cast("list[bytes]", self.client.lrange(self.prefix + key, 0, -1))

    def _hash(self, key: str) -> dict[bytes, bytes]:
        return cast("dict[bytes, bytes]", self.client.hgetall(self.prefix + key))
