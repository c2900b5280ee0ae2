"""Jobs that this process wanted to requeue and whose claims the server no longer has: finds out the
fate of each, for the log and the counters.

``PendingLeases`` adds such a job, in the thread that sent the requeue. ``Owner.catch_up`` examines
the jobs later: in a worker its maintenance thread calls that, in a plain consumer the consumer's
loop. An owner that leaves examines them, too. ``record_data_loss`` is one of the owner's deferred
calls, after the server has forgotten this process.

The jobs are in memory until they are examined. If the process dies before that, the log and the
counters miss them. No job moves here.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from contextlib import suppress
from enum import Enum
from threading import Lock
from time import time
from typing import NamedTuple

from redis.exceptions import ResponseError

from ...model.job import Job, claimed_at, digest, parse
from ...model.log_text import one_line_each
from ...store.database import Database
from ...store.dead_set import DeadSetStore
from ...store.owner_registry import OwnerRegistry
from ...store.redis.clients import run_id
from ...store.stats import Stats

logger = one_line_each(logging.getLogger(__name__))

LOGGED_IN_A_ROW = 20  # jobs of one burst that get a line each; the other jobs share one line
EXAMINED_AT_ONCE = 100  # jobs about which the server is asked in one round trip

LOST = (
    "Job %s is lost (queue=%s, owner=%s): Redis no longer has it, and this worker had not "
    "started it. Publish it again."
)
LOST_AFTER_RUN = (
    "Job %s is lost (queue=%s, owner=%s): Redis no longer has it, and its run on this worker "
    "ended without an ack. Publish it again."
)
RECOVERED = (
    "Job %s does not start on this worker (queue=%s, owner=%s): the worker was declared dead, "
    "and another worker recovered the job."
)
DEAD_LETTERED = (
    "Job %s does not start on this worker (queue=%s, owner=%s): it was moved to the dead set."
)
PERHAPS_BACK = (
    "Job %s is lost (queue=%s, owner=%s): Redis no longer has its claim, and may have come back "
    "with older data. Publish it again, unless it is on its queue or has run."
)
#: True for lost jobs, False for others -> the level and the common line for jobs that are not
#: logged one by one.
MORE = {
    True: (
        logging.WARNING,
        "%d more jobs are lost in the same way (%s). Their ids are logged at DEBUG only. Publish "
        "them again, from your own records.",
    ),
    False: (logging.INFO, "%d more jobs do not start on this worker for the same reasons (%s)."),
}


class Fate(Enum):
    """The fate of a job whose claim is gone."""

    LOST = LOST  # flushed, deleted or evicted
    LOST_AFTER_RUN = LOST_AFTER_RUN
    PERHAPS_BACK = PERHAPS_BACK  # with older data it may be on its queue, or in a private list
    RECOVERED = RECOVERED
    DEAD_LETTERED = DEAD_LETTERED
    REQUEUED = ""  # by an earlier try whose reply was lost; not logged

    @property
    def is_loss(self) -> bool:
        return self in (Fate.LOST, Fate.LOST_AFTER_RUN, Fate.PERHAPS_BACK)


class MissingJob(NamedTuple):
    """A job whose requeue or park found no claim on the server."""

    job: Job
    has_run: bool
    #: The command was sent before and had no answer: the server may have carried it out then.
    is_repetition: bool


class LostJobs:
    """Jobs whose requeue found no claim; true if there are any. Any thread adds one. They are
    examined later, with the owner's deferred calls: that takes round trips, during which neither
    the lock of the leases may be held nor a worker's event loop stand still."""

    def __init__(self, database: Database) -> None:
        self._registry, self._dead_set = OwnerRegistry(database), DeadSetStore(database)
        self._stats = Stats(database)
        self._missing: deque[MissingJob] = deque()
        self._in_a_row = 0
        #: Held by the thread that examines: the maintenance thread and a channel that closes may
        #: both want to.
        self._examining = Lock()
        #: When the server had another run id than before (s since the epoch, by this host's
        #: clock); ``Owner.on_server_restarted`` sets it, or an ``examine`` that is faster than the
        #: heartbeats.
        self.server_restarted_at = 0.0
        #: The run id of the server that answered the last heartbeat; empty: unknown.
        self.heartbeat_run_id = ""

    def __bool__(self) -> bool:
        """Return whether jobs wait to be examined."""
        return bool(self._missing)

    def add(self, job: Job, has_run: bool, is_repetition: bool) -> None:
        """Add a job for the next ``examine``."""
        self._missing.append(MissingJob(job, has_run, is_repetition))

    def record_data_loss(self) -> None:
        """Record for `status` that the server no longer knows this process: it may have lost the
        jobs that waited on queues as well, and no worker can name those.

        Raises RedisError where the server cannot be reached; the caller tries again.
        """
        with suppress(ResponseError):  # a full server refuses, and jobs must not wait for a record
            self._stats.record_data_loss()

    def examine(self) -> None:
        """Find out what became of the jobs that were added, log it, and count the lost ones. Only
        the first ``LOGGED_IN_A_ROW`` jobs of a burst get a line each; a call that finds no job ends
        the burst.

        Raises RedisError where the server cannot be reached; the jobs are examined next time.
        """
        with self._examining:
            self._examine()

    def _examine(self) -> None:
        if not self._missing:
            self._in_a_row = 0
        surplus: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        try:
            while self._missing:
                some = list(self._missing)[:EXAMINED_AT_ONCE]
                fates = self._fates(some)
                if lost := [m.job for m, fate in zip(some, fates, strict=True) if fate.is_loss]:
                    with suppress(
                        ResponseError
                    ):  # refused for lack of replicas, say: the log has the jobs all the same
                        self._stats.record_lost_by_server(lost)
                # Last: if the server is away, the calls above raise before any job is removed, and
                # the next call examines the same jobs.
                for missing, fate in zip(some, fates, strict=True):
                    self._missing.popleft()
                    if not self._log(missing.job, fate):
                        task = parse(missing.job.payload).task or "unparseable"
                        surplus[fate.is_loss][task] += 1
        finally:
            for is_loss, jobs_by_task in surplus.items():
                if jobs_by_task:
                    level, text = MORE[is_loss]
                    tasks = ", ".join(f"{task}: {n}" for task, n in jobs_by_task.most_common(5))
                    logger.log(level, text, jobs_by_task.total(), tasks)

    def _fates(self, missing: list[MissingJob]) -> list[Fate]:
        run = run_id(self._registry.client)
        # After a restart the close of a channel examines its jobs before a heartbeat finds out.
        if run and self.heartbeat_run_id not in ("", run):
            self.server_restarted_at = time()
        states = self._registry.states({entry.job.owner for entry in missing})
        dead = self._dead_set.contains([digest(entry.job.payload) for entry in missing])
        return [
            self._fate(entry, states[entry.job.owner], is_dead, is_run_known=bool(run))
            for entry, is_dead in zip(missing, dead, strict=True)
        ]

    def _log(self, job: Job, fate: Fate) -> bool:
        """Log the fate of a job. Return False if too many were logged in a row: the line is at
        DEBUG then, and the caller counts the job in a common line."""
        if fate is Fate.REQUEUED:
            return True
        self._in_a_row += 1
        is_one_of_many = self._in_a_row > LOGGED_IN_A_ROW
        level = logging.WARNING if fate.is_loss else logging.INFO
        level = logging.DEBUG if is_one_of_many else level
        logger.log(level, fate.value, job.title, job.queue_list, job.owner)
        return not is_one_of_many

    def _fate(
        self, missing: MissingJob, state: str | None, is_dead: bool, *, is_run_known: bool
    ) -> Fate:
        """Return the fate of a job, by the state in the record of its owner (None: the server has
        no record). ``is_run_known``: the server says which run it is, so that a restart shows."""
        if state == "reaped":
            return Fate.RECOVERED
        if is_dead:
            return Fate.DEAD_LETTERED
        # The data may be older than the claim. Then a requeue that the server carried out is undone
        # as well, and a missing record says no more than that the owner registered later.
        if (claimed_at(missing.job.claim_id) or 0) < self.server_restarted_at:
            return Fate.PERHAPS_BACK
        if state is not None and missing.is_repetition:
            return Fate.REQUEUED
        if state is None and not is_run_known:
            return Fate.PERHAPS_BACK
        return Fate.LOST_AFTER_RUN if missing.has_run else Fate.LOST
