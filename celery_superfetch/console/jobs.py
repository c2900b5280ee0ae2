"""Reads the jobs in flight, parked and on probation, a page at a time.

`superfetch jobs`, the drill and the page make a ``JobsSnapshot``. It only reads: a death leaves
nothing behind.

State, queue, worker and run time of a claimed job are known without its message: from the name of
its claim, and from the record of its owner. So only the jobs that are shown are read, unless the
task or the strikes of jobs matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from math import inf
from typing import Any, NamedTuple

from ..inspector import PARKED, PROBATION, RESERVED, RUNNING, Inspector, JobPlace, SeenClaim
from ..model.arguments import arguments
from ..model.dead_job import utc
from ..model.job import Envelope, claim_number, claimed_at, digest, parse, queue_list_of
from ..model.records import whole
from .overview import is_long, owner_rows, run_seconds

#: Jobs that the page reads at most to find those that meet conditions. Commands read all.
PAGE_READS_MOST = 4_000

COUNTERS_MOST = 1000  # jobs whose histories one script reads
BATCH_MOST = 20_000  # jobs of one round trip; the store bounds it further

#: Jobs with strikes, in any state.
STRUCK = "struck"

#: The name of the state PARKED for people; in JSON and in addresses it is ``parked``.
SCHEDULED = "scheduled"

#: Orders of jobs: the longest run first, the oldest claim first, by the name of the task. Without
#: one, the jobs of each worker come together, the running ones first.
BY_RUN, BY_CLAIM, BY_TASK = SORTS = ("run", "claimed", "task")


#: A job as it is shown, and its message.
Found = tuple[dict[str, Any], bytes]


class Which(NamedTuple):
    """Conditions; a job has to meet all that are given. ``*`` stands for anything in a name."""

    #: One of ``STATES``, or ``STRUCK``.
    state: str | None = None
    queue: str | None = None
    task: str | None = None
    node: str | None = None
    owner: str | None = None  # the whole name of its owner
    #: Seconds that it has run at least. A run that is shorter than a heartbeat interval has no
    #: known length.
    longer: float | None = None

    def wants(self, *states: str) -> bool:
        """Return whether a job in one of these states can meet the conditions."""
        if self.longer is not None and RUNNING not in states:
            return False
        return self.state in (None, STRUCK, *states)

    def takes_owner(self, owner: str, node: str) -> bool:
        """Return whether jobs of this owner can meet the conditions."""
        return fits(node, self.node) and self.owner in (None, owner)

    @property
    def countable(self) -> bool:
        """True if the jobs can be counted without being read."""
        return self.state != STRUCK and self.task is None


class JobsSnapshot:
    """One look at the jobs of a database.

    Arguments:
        sort: one of ``SORTS``; empty: by worker.
    """

    def __init__(self, inspector: Inspector, which: Which, sort: str = "") -> None:
        self.inspector, self.which, self.sort = inspector, which, sort
        self.now = inspector.database.server_time()
        judged = inspector.judged() if which.wants(RUNNING, RESERVED) else []
        chosen = [row for row in judged if which.takes_owner(row[0].owner, row[0].node)]
        #: Owner -> number of a claim -> when its job started (s, by the clock of the owner's host).
        self.started = {record.owner: dict(record.started_jobs) for record, _, _ in chosen}
        if which.longer is not None:
            chosen = [row for row in chosen if self._runs_long(self.started[row[0].owner].values())]
        rows = owner_rows(inspector, chosen, self.now)
        rows.sort(key=lambda pair: (pair[0]["node"], pair[0]["owner"]))
        #: Owner -> (its row, its in-flight counts), of owners that hold jobs.
        self.owners = {row["owner"]: (row, held) for row, held in rows if held.in_flight}
        #: State -> the queue lists that have jobs in this state, which no owner has claimed.
        self.unclaimed: dict[str, list[str]] = {}
        for state, kind in ((PARKED, inspector.parked), (PROBATION, inspector.suspects)):
            if which.wants(state) and which.node is None and which.owner is None:
                self.unclaimed[state] = sorted(filter(self._is_meant, kind.lists()))

    @property
    def countable(self) -> bool:
        """True if all is known without the messages of jobs that are not shown."""
        return self.which.countable and self.sort != BY_TASK

    def first(self, limit: int, most: float = inf) -> dict[str, Any]:
        """Return the first ``limit`` jobs that meet the conditions, their owners, and how many more
        there are.

        Arguments:
            most: jobs to read at most; ``complete``, ``read`` and ``size`` say what was not read.
                Jobs that need not be read to be counted are not read beyond ``limit``.
        """
        most = limit if self.countable else most
        found: list[Found] = []
        read_count = matches = 0
        for number, jobs in self._read(int(min(most + 1, BATCH_MOST))):
            read_count += number
            meant = self._matching(jobs)
            matches += len(meant)
            found += meant
            if self.sort == BY_TASK:
                found.sort(key=lambda pair: pair[0]["task"] or "")
            del found[limit:]
            if read_count > most:
                break
        complete = read_count <= most
        size = read_count if complete else self.size()
        if not complete and self.countable:
            matches, complete = size, True
        return {
            "server_time": utc(self.now / 1000),
            "owners": [row for row, _ in self.owners.values()],
            "jobs": self._whole(found),
            # Jobs that were read, meet the conditions and are not shown.
            "more": max(0, matches - limit),
            "complete": complete,
            "read": read_count,
            "size": size,
        }

    def task_ids(self) -> Iterator[str]:
        """Yield the task ids of the jobs that meet the conditions; messages without one are left
        out."""
        for _, jobs in self._read(BATCH_MOST):
            yield from (job["id"] for job, _ in self._matching(jobs) if job["id"] != job["digest"])

    def size(self) -> int:
        """Return the number of jobs that meet the conditions other than those on their tasks and
        strikes, without reading them."""
        suspects = self.inspector.queues.lengths(self.unclaimed.get(PROBATION, ()))
        parked = self.inspector.parked.sizes(self.unclaimed.get(PARKED, ()))
        unclaimed = sum(size for _, size in suspects) + sum(parked.values())
        return len(self._claims) + sum(self._landed.values()) + unclaimed

    @cached_property
    def _seen_claims(self) -> list[SeenClaim]:
        """All claims of the owners that may have such jobs."""
        return self.inspector.in_flight_jobs.claims([*self.owners])

    @cached_property
    def _claims(self) -> list[SeenClaim]:
        """The claims that meet the conditions on state, queue, worker and run time, in their
        order."""
        which, meant = self.which, dict[str, bool]()
        claims: list[SeenClaim] = []
        for claim in self._seen_claims:
            queue_list = queue_list_of(claim.claim_id)
            if queue_list not in meant:  # there are few
                meant[queue_list] = self._is_meant(queue_list)
            is_long = which.longer is None or self._runs_long([self._start_of(claim)])
            if meant[queue_list] and is_long and which.wants(RUNNING if claim.runs else RESERVED):
                claims.append(claim)
        if self.sort == BY_RUN:
            claims.sort(key=self._by_run)
        elif self.sort == BY_CLAIM:
            claims.sort(key=lambda claim: claim_number(claim.claim_id))
        return claims

    def _by_run(self, claim: SeenClaim) -> tuple[Any, ...]:
        """Return the place of a claim among others: the longest run first, then the runs whose
        start is not known yet, then the jobs that have not begun; the oldest claims first."""
        started = self._start_of(claim)
        return not claim.runs, started is None, started or 0, claim_number(claim.claim_id)

    def _start_of(self, claim: SeenClaim) -> int | None:
        """Return when a run started (s, by the clock of the owner's host), if that is known."""
        numbers = self.started.get(claim.owner, {})
        return numbers.get(claim_number(claim.claim_id)) if claim.runs else None

    def _runs_long(self, starts: Iterable[int | None]) -> bool:
        """Return whether one of these runs is as long as the condition wants."""
        least = self.which.longer or 0.0
        return any(at is not None and run_seconds(at, self.now) >= least for at in starts)

    @cached_property
    def _landed(self) -> dict[JobPlace, int]:
        """The landing lists that have jobs -> how many: the jobs that their owner has in flight and
        that are no claims."""
        if not self.which.wants(RESERVED):
            return {}
        claimed = Counter((owner, queue_list_of(id)) for owner, id, _ in self._seen_claims)
        sizes = {
            JobPlace(RESERVED, owner, name): size - claimed[owner, name]
            for owner, (_, held) in self.owners.items()
            for name, size in sorted(held.lists.items())
            if self._is_meant(name)
        }
        return {place: size for place, size in sizes.items() if size > 0}

    def _read(self, most: int) -> Iterator[tuple[int, list[Found]]]:
        """Yield the jobs that may meet the conditions, with their messages, a batch at a time, and
        the number that was read: claims, then landed jobs, then parked ones and suspects."""
        lists = [
            JobPlace(state, "", name) for state, names in self.unclaimed.items() for name in names
        ]
        in_flight_jobs = self.inspector.in_flight_jobs
        batches = (
            in_flight_jobs.read(self._claims, most),
            in_flight_jobs.jobs([*self._landed, *lists], most),
        )
        for batch in chain(*batches):
            yield len(batch), [(self._job(*entry), entry.payload) for entry in batch]

    def _job(self, place: JobPlace, payload: bytes, claim: str, runs: bool) -> dict[str, Any]:
        name, envelope = digest(payload), parse(payload)
        queue_list = place.queue_list or queue_list_of(claim)
        owner: Mapping[str, Any] = self.owners[place.owner][0] if place.owner else {}
        started = self._start_of(SeenClaim(place.owner, claim, runs))
        seconds = None if started is None else run_seconds(started, self.now)
        return {
            "id": envelope.task_id or name,
            "task": envelope.task,
            "state": RUNNING if runs else place.state,
            **{part: owner.get(part) for part in ("node", "owner", "verdict", "host", "pid")},
            "queue": self._queue(queue_list),
            "list": queue_list,
            "strikes": 0,
            "recoveries": 0,
            # Celery's count of earlier tries of this task (``Task.retry``).
            "retries": retries_of(envelope),
            # By the clock of its owner's host; not known of a job that landed a moment ago.
            "claimed": utc(claimed_at(claim) if claim else None),
            # By the same clock; known of jobs that run for longer than a heartbeat interval.
            "started": utc(started),
            # For how long (s) it has run, if its start is known.
            "run_time": seconds,
            "due": utc(envelope.eta or None),
            # The same, if it is long-running.
            "long_run": seconds if seconds is not None and is_long(seconds) else None,
            "claim_id": claim or None,
            "digest": name,
        }

    def _matching(self, jobs: list[Found]) -> list[Found]:
        """Return those of some jobs that meet the conditions on task and strikes."""
        meant = [pair for pair in jobs if fits(pair[0]["task"], self.which.task)]
        if self.which.state != STRUCK:
            return meant
        self._count([job for job, _ in meant])
        return [pair for pair in meant if pair[0]["strikes"]]

    def _whole(self, found: list[Found]) -> list[dict[str, Any]]:
        """Return jobs that are shown, with their arguments and their stored counters."""
        jobs = [job for job, _ in found]
        self._count(jobs)
        for job, payload in found:
            job["args"], job["kwargs"] = arguments(payload)
        return jobs

    def _count(self, jobs: list[dict[str, Any]]) -> None:
        """Add their stored counters to some jobs."""
        for at in range(0, len(jobs), COUNTERS_MOST):
            some = jobs[at : at + COUNTERS_MOST]
            records = self.inspector.strikes.counters([job["digest"] for job in some])
            for job, counters in zip(some, records, strict=True):
                job["recoveries"], job["strikes"] = counters.recoveries, counters.strikes or 0

    def _is_meant(self, queue_list: str) -> bool:
        return fits(self._queue(queue_list), self.which.queue)

    def _queue(self, queue_list: str) -> str:
        return self.inspector.database.queue_of(queue_list)


def retries_of(envelope: Envelope) -> int:
    """Return how often the task of a message was retried before; 0 where it does not say."""
    headers = (envelope.message or {}).get("headers") or {}
    return max(0, whole(headers.get("retries")))


def fits(name: str | None, pattern: str | None) -> bool:
    """Return whether a name meets a condition, in which ``*`` stands for anything."""
    return pattern is None or fnmatchcase(name or "", pattern)
