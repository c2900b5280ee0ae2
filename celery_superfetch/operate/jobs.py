"""Which jobs are in flight and on probation, read a page at a time; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple

from ..model.dead_job import utc
from ..model.job import claimed_at, digest, parse
from ..reaper.evidence import judge_all
from ..reaper.reaper import Reaper
from ..store.counters import StrikeCounters
from ..store.holdings import Holdings
from ..store.private_lists import PrivateLists
from ..store.queues import Queues, Suspects
from .overview import owner_row

#: Jobs that are looked at for conditions to pick from.
LOOKED_AT = 20_000

RUNNING, RESERVED, ETA, PROBATION = STATES = ("running", "reserved", "eta", "probation")
#: Those with strikes, whatever their state.
STRUCK = "struck"


class Which(NamedTuple):
    """Conditions; a job has to meet all that are given. ``*`` stands for anything in a name."""

    #: One of ``STATES``, or ``STRUCK``.
    state: str | None = None
    queue: str | None = None
    task: str | None = None
    node: str | None = None

    def takes(self, job: Mapping[str, Any]) -> bool:
        """Whether a job meets them."""
        named = ((self.queue, "queue"), (self.task, "task"), (self.node, "node"))
        right = self.state in (None, job["state"]) or (self.state == STRUCK and job["strikes"] > 0)
        return right and all(_fits(job[name], pattern) for pattern, name in named)

    def wants(self, *states: str) -> bool:
        """Whether there may be some in one of these states."""
        return self.state in (None, STRUCK, *states)

    @property
    def countable(self) -> bool:
        """Whether the jobs need not be read to be counted."""
        return self.state != STRUCK and self.queue is None and self.task is None


class Look:
    """One look at the jobs of a database."""

    def __init__(self, reaper: Reaper, which: Which, separator: str) -> None:
        database = reaper.database
        self.which, self.separator = which, separator
        self.lists, self.holdings = PrivateLists(database), Holdings(database)
        self.strikes, self.queues = StrikeCounters(database), Queues(database)
        self.now = database.server_time()
        judged = [] if which.state == PROBATION else judge_all(reaper.registry)
        chosen = [row for row in judged if _fits(row[0].node, which.node)]
        held = self.holdings.of([facts.owner for facts, _, _ in chosen])
        rows = (
            owner_row(facts, max(0, self.now - score) / 1000, verdict, held[facts.owner])
            for facts, score, verdict in chosen
        )
        #: Those who hold something.
        self.owners = sorted(
            (row for row in rows if row["in_flight"]), key=lambda row: (row["node"], row["owner"])
        )
        #: The queue lists that have jobs on probation; these are nobody's.
        self.probation: Sequence[str] = ()
        if which.wants(PROBATION) and which.node is None:
            self.probation = sorted(Suspects(database).lists())

    def first(self, limit: int) -> dict[str, Any]:
        """The first ``limit`` jobs that are meant, their owners, and how many more there are.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        most = limit if self.which.countable else LOOKED_AT
        looked = list(islice(self._each(), most + 1))
        meant = [job for job in looked if self.which.takes(job)]
        complete = len(looked) <= most
        more = len(meant) - limit
        if not complete and self.which.countable:
            more, complete = self._size() - limit, True
        return {
            "server_time": utc(self.now / 1000),
            "owners": self.owners,
            "jobs": meant[:limit],
            # That meet the conditions and are not shown; of those that were looked at.
            "more": max(0, more),
            "complete": complete,
        }

    def _size(self) -> int:
        """How many meet the conditions, where these need no look at the jobs."""
        states = [state for state in (RUNNING, RESERVED, ETA) if self.which.wants(state)]
        suspects = sum(waiting for _, waiting in self.queues.lengths(self.probation))
        return suspects + sum(owner[state] for owner in self.owners for state in states)

    def _each(self) -> Iterator[dict[str, Any]]:
        """The jobs of each owner, what is near before what waits aside; then those of nobody."""
        for owner in self.owners:
            name = owner["owner"]
            runs = self.lists.running(name).claim_ids
            if self.which.state == RUNNING and not runs:
                continue
            lists = [one for one in owner["queues"] if _fits(self._queue(one), self.which.queue)]
            filled = self.lists.has_jobs((name, [one]) for one in lists)
            for queue_list in (one for one, there in zip(lists, filled, strict=True) if there):
                yield from self._of(owner, queue_list, runs)
        for queue_list in self.probation:
            if _fits(self._queue(queue_list), self.which.queue):
                for page in self.holdings.on_probation(queue_list):
                    yield from self._rows(page, queue_list, PROBATION, {}, {})

    def _of(
        self, owner: Mapping[str, Any], queue_list: str, runs: Mapping[str, str]
    ) -> Iterator[dict[str, Any]]:
        """What an owner has of one queue list; ``runs``: the claims of what runs, by digest."""
        if self.which.wants(RUNNING, RESERVED):
            for page in self.holdings.near(owner["owner"], queue_list):
                yield from self._rows(page, queue_list, RESERVED, owner, runs)
        if self.which.wants(ETA, RUNNING):
            for claims in self.holdings.aside(owner["owner"], queue_list):
                ids = list(claims)
                yield from self._rows([*claims.values()], queue_list, ETA, owner, runs, ids)

    def _rows(
        self,
        payloads: Sequence[bytes],
        queue_list: str,
        state: str,
        owner: Mapping[str, Any],
        runs: Mapping[str, str],
        claims: Sequence[str] = (),
    ) -> Iterator[dict[str, Any]]:
        digests = [*map(digest, payloads)]
        known = self.strikes.counters(digests) if digests else []
        for at, (payload, name, counters) in enumerate(zip(payloads, digests, known, strict=True)):
            claim = claims[at] if claims else runs.get(name, "")
            envelope = parse(payload)
            recorded = counters.strikes
            strikes = envelope.carried.strikes if recorded is None else recorded
            job: dict[str, Any] = {
                "id": envelope.task_id or name,
                "task": envelope.task,
                "state": RUNNING if name in runs else state,
                "node": owner.get("node"),
                "owner": owner.get("owner"),
                "verdict": owner.get("verdict"),
                "queue": self._queue(queue_list),
                "list": queue_list,
                "strikes": strikes,
                "recoveries": counters.recoveries,
                # By the clock of its owner's host; not known of what is only reserved.
                "claimed": utc(claimed_at(claim) if claim else None),
                "due": utc(envelope.eta or None),
                "claim_id": claim or None,
                "digest": name,
            }
            if self.which.wants(job["state"]):
                yield job

    def _queue(self, queue_list: str) -> str:
        return queue_list.partition(self.separator)[0]


def _fits(name: str | None, pattern: str | None) -> bool:
    return pattern is None or fnmatchcase(name or "", pattern)
