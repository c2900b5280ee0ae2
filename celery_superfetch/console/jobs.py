"""Which jobs are in flight, parked and on probation, read a page at a time; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from math import inf
from typing import Any, NamedTuple

from ..inspector import PARKED, PROBATION, RESERVED, RUNNING, Inspector, Place
from ..model.dead_job import utc
from ..model.job import claim_number, claimed_at, digest, parse, queue_list_of
from .overview import is_long, owner_rows, run_seconds

#: Jobs that the page reads to pick some by conditions: about a second. Commands read all.
PAGE_READS_MOST = 20_000

BATCH_MOST = 20_000  # jobs of one round trip; the store bounds it further

#: Those with strikes, whatever their state.
STRUCK = "struck"


class Which(NamedTuple):
    """Conditions; a job has to meet all that are given. ``*`` stands for anything in a name."""

    #: One of ``STATES``, or ``STRUCK``.
    state: str | None = None
    queue: str | None = None
    task: str | None = None
    node: str | None = None

    def wants(self, *states: str) -> bool:
        """Whether there may be some in one of these states."""
        return self.state in (None, STRUCK, *states)

    @property
    def countable(self) -> bool:
        """Whether the jobs need not be read to be counted."""
        return self.state != STRUCK and self.queue is None and self.task is None


class Look:
    """One look at the jobs of a database."""

    def __init__(self, inspector: Inspector, which: Which) -> None:
        self.inspector, self.which = inspector, which
        self.now = inspector.database.server_time()
        judged = [] if which.state in (PARKED, PROBATION) else inspector.judged()
        chosen = [row for row in judged if _fits(row[0].node, which.node)]
        rows = owner_rows(inspector, chosen, self.now)
        rows.sort(key=lambda pair: (pair[0]["node"], pair[0]["owner"]))
        #: Owner -> number of a claim -> when its job started (s, by the clock of the owner's host).
        self.started = {facts.owner: dict(facts.started_jobs) for facts, _, _ in chosen}
        #: Those who hold something, each with what that is.
        self.owners = {row["owner"]: (row, held) for row, held in rows if held.in_flight}
        #: State -> the queue lists that have such jobs, which are nobody's.
        self.nobodys: dict[str, list[str]] = {}
        for state, kind in ((PARKED, inspector.parked), (PROBATION, inspector.suspects)):
            if which.wants(state) and which.node is None:
                self.nobodys[state] = sorted(kind.lists())

    def first(self, limit: int, most: float = inf) -> dict[str, Any]:
        """Return the first ``limit`` jobs that meet the conditions, their owners, and how many more
        there are.

        Arguments:
            most: jobs to read at most; what was not read is said in ``complete``, ``looked_at`` and
                ``size``. Jobs that need not be read to be counted are not read beyond ``limit``.
        """
        most = limit if self.which.countable else most
        meant: list[dict[str, Any]] = []
        looked_at = matches = 0
        for number, jobs in self._read(int(min(most + 1, BATCH_MOST))):
            looked_at += number
            found = self._counted([job for job in jobs if _fits(job["task"], self.which.task)])
            matches += len(found)
            meant += found[: limit - len(meant)]
            if looked_at > most:
                break
        complete = looked_at <= most
        size = looked_at if complete else self.size()
        if not complete and self.which.countable:
            matches, complete = size, True
        return {
            "server_time": utc(self.now / 1000),
            "owners": [row for row, _ in self.owners.values()],
            "jobs": meant,
            # That meet the conditions and are not shown; of those that were looked at.
            "more": max(0, matches - limit),
            "complete": complete,
            "looked_at": looked_at,
            "size": size,
        }

    def size(self) -> int:
        """How many there are in states that are meant: all that can be said without a look at the
        jobs."""
        states = [state for state in (RUNNING, RESERVED) if self.which.wants(state)]
        suspects = self.inspector.queues.lengths(self.nobodys.get(PROBATION, ()))
        parked = self.inspector.parked.sizes(self.nobodys.get(PARKED, ()))
        waiting = sum(size for _, size in suspects) + sum(parked.values())
        return waiting + sum(row[state] for row, _ in self.owners.values() for state in states)

    def _places(self) -> Iterator[Place]:
        """Of each owner what it has claimed, then what landed; then what is nobody's."""
        yield from (Place(RESERVED, owner) for owner in self.owners)
        if self.which.wants(RESERVED):
            for owner, (_, held) in self.owners.items():
                for name in filter(self._is_meant, sorted(held.lists)):
                    yield Place(RESERVED, owner, name)
        for state, lists in self.nobodys.items():
            for name in filter(self._is_meant, lists):
                yield Place(state, queue_list=name)

    def _read(self, most: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """The jobs in states that are meant, some at a time, and how many were looked at."""
        for batch in self.inspector.holdings.jobs([*self._places()], most):
            jobs = [self._job(*entry) for entry in batch]
            jobs = [job for job in jobs if self.which.wants(job["state"])]
            jobs = [job for job in jobs if _fits(job["queue"], self.which.queue)]
            yield len(jobs if self.which.countable else batch), jobs

    def _job(self, place: Place, payload: bytes, claim: str, runs: bool) -> dict[str, Any]:
        name, envelope = digest(payload), parse(payload)
        queue_list = place.queue_list or queue_list_of(claim)
        owner: Mapping[str, Any] = self.owners[place.owner][0] if place.owner else {}
        started = self.started.get(place.owner, {}).get(claim_number(claim))
        seconds = run_seconds(started, self.now) if runs and started else 0
        return {
            "id": envelope.task_id or name,
            "task": envelope.task,
            "state": RUNNING if runs else place.state,
            **{part: owner.get(part) for part in ("node", "owner", "verdict")},
            "queue": self._queue(queue_list),
            "list": queue_list,
            "strikes": 0,
            "recoveries": 0,
            # By the clock of its owner's host; not known of what has landed a moment ago.
            "claimed": utc(claimed_at(claim) if claim else None),
            # By the same clock. Known of what runs for longer than a heartbeat interval.
            "started": utc(started) if runs else None,
            "due": utc(envelope.eta or None),
            # For how long (s) it has run, if it is long-running.
            "long_run": seconds if is_long(seconds) else None,
            "claim_id": claim or None,
            "digest": name,
        }

    def _counted(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """With the counters that are recorded of them; with strikes, if these are meant."""
        records = self.inspector.strikes.counters([job["digest"] for job in jobs]) if jobs else []
        for job, counters in zip(jobs, records, strict=True):
            job["recoveries"] = counters.recoveries
            if counters.strikes is not None:
                job["strikes"] = counters.strikes
        return [job for job in jobs if job["strikes"] or self.which.state != STRUCK]

    def _is_meant(self, queue_list: str) -> bool:
        return _fits(self._queue(queue_list), self.which.queue)

    def _queue(self, queue_list: str) -> str:
        return queue_list.partition(self.inspector.separator)[0]


def _fits(name: str | None, pattern: str | None) -> bool:
    return pattern is None or fnmatchcase(name or "", pattern)
