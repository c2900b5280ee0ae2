"""The dead set of a Celery app: finds dead-lettered jobs, puts them back on their queues, deletes
them.

Users' programs, the commands and the console's page make a ``DeadSet``. A worker's pool process
makes one to read the job that a failure notification is about (``announcement``).

A retry locks a batch of jobs, deletes their old results, and moves each job by one script. If the
process dies, each job is in the dead set or on its queue. A job that is still in the dead set may
have lost its result, and no retry can take it until its lock has expired, after a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from celery import Celery
from redis import Redis

from ..errors import JobNotFound, NotWhole, WrongType
from ..model.arguments import printable
from ..model.dead_job import CUT, Conditions, DeadJob
from ..model.lazy import lazy_property
from ..store import dead_set as store
from ..store.dead_set import BATCH
from ..store.queues import Queues
from .broker import client_of, database_of
from .dead_results import DeadResults
from .queues import routes_of, separator_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

BUSY = (
    "job {!r} is being put back by somebody else at this moment; if that is given up, it can be "
    "retried in a minute"
)
GONE = "no job {!r} in the dead set: it left meanwhile"


@dataclass
class Retried:
    """What became of one job that was to be put back."""

    id: str  #: as it was named, or its id in the dead set
    task: str | None = None  #: name of its task
    task_id: str | None = None  #: Celery's id of the task
    queue: str | None = None  #: the queue list it is on, or could not be put on
    #: Why it is still in the dead set, or gone; None if it is on its queue.
    error: str | None = None
    warning: str | None = None  #: what else went wrong, if its result still says FAILURE
    is_cut: bool = False  #: only the head of its message was kept: it cannot be put back


class DeadSet(store.DeadSet):
    """Killed jobs of the app's broker, newest first.

    >>> with DeadSet(app) as dead:
    ...     dead.retry_all(task="shop.charge", newer_than=3600)

    Jobs are picked by conditions (``task``, ``queue``, ``reason``, ``older_than``, ``newer_than``),
    and named by id or Celery task id, or the start of either.

    Iterate over it for all jobs, the newest first; ``len()`` says how many there are.

    Arguments:
        app: the app, after ``install(app)``.
        client: a client for the broker's database; None: one of its own, for ``close``.

    Raises:
        ConfigError: an option of the app is misspelt or impossible.
        UnsupportedBroker: the app's broker is not Redis.
        redis.exceptions.RedisError: it cannot be reached.
    """

    def __init__(self, app: Celery, client: Redis | None = None) -> None:
        super().__init__(database_of(app, client or client_of(app)))
        self.app = app
        self.separator = separator_of(app)
        self._owns_client = client is None

    def close(self) -> None:
        """Close the connection, if it is its own."""
        if self._owns_client:
            self.client.close()

    def __enter__(self) -> DeadSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def retry(self, job: DeadJob | str, to: str | None = None) -> Retried:
        """Put one job back at the end of its queue, or of another (``to``), in its old priority,
        counters cleared and its result pending again.

        Arguments:
            job: a job, or its id, or Celery's id of the task, or the start of either.
            to: name of the queue; None: its own.

        Raises:
            JobNotFound: it is not in the dead set, or it left meanwhile.
            NotWhole: only the head of its message was kept.
            WrongType: the queue's key holds something else.
        """
        [done] = self.retry_many([job], to)
        if done.error is None:
            return done
        if done.is_cut:
            raise NotWhole(done.error)
        raise (JobNotFound if done.queue is None else WrongType)(done.error)

    def retry_many(
        self,
        jobs: Iterable[DeadJob | str],
        to: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> list[Retried]:
        """Put jobs back in order, each as ``retry`` does, and return what became of each. A job
        that cannot be put back does not hold up the others, and has an ``error``.

        Arguments:
            jobs: each as for ``retry``.
            to: name of the queue; None: their own.
            progress: called after each batch with the number of jobs that were dealt with.
        """
        results = DeadResults(self.app)
        done: list[Retried] = []
        queue = iter(jobs)
        while batch := list(islice(queue, BATCH)):
            done += self._retry(batch, to, results)
            if progress is not None:
                progress(len(done))
        return done

    def retry_all(
        self,
        to: str | None = None,
        progress: Callable[[int], object] | None = None,
        **conditions: Unpack[Conditions],
    ) -> list[Retried]:
        """Put all jobs back that meet the conditions, in the order in which they came here.

        Arguments:
            to: name of the queue; None: their own.
            progress: called after each batch with the number of jobs that were dealt with.
            conditions: which jobs are meant; none: all of them.

        Raises:
            BadFilter: a condition is empty, or no job could meet them all.
        """
        return self.retry_many(self.find(oldest_first=True, **conditions), to, progress)

    def _retry(
        self, batch: Sequence[DeadJob | str], to: str | None, results: DeadResults
    ) -> list[Retried]:
        """Put a batch back, in order. No result of a job that stays dead is forgotten."""
        done, jobs, targets = [], [], []
        known = self.exact_many([named for named in batch if isinstance(named, str)])
        for named in batch:
            try:
                job = named if isinstance(named, DeadJob) else known.get(named) or self.get(named)
            except JobNotFound as exc:
                done.append(Retried(str(named), error=str(exc)))
                continue
            target = self._target(job, to)
            done.append(Retried(job.id, job.task, job.task_id, target))
            if job.whole_bytes:
                done[-1].error, done[-1].is_cut = CUT.format(job.id, job.whole_bytes), True
                continue
            jobs.append((job, target, done[-1]))
            targets.append(target)
        queues = Queues(self.database)
        able, ours = queues.can_take(targets), self.reserve([job[0] for job in jobs])
        try:
            self._retry_reserved(jobs, able, ours, results)
        except BaseException:  # Ctrl-C, too: else they could not be retried for a minute
            self.release([job[0] for job, mine in zip(jobs, ours, strict=True) if mine])
            raise
        queues.note({row.queue for *_, row in jobs if row.queue and not row.error})
        return done

    def _retry_reserved(
        self,
        jobs: Sequence[tuple[DeadJob, str, Retried]],
        able: Sequence[bool],
        ours: Sequence[bool],
        results: DeadResults,
    ) -> None:
        """Delete the results of jobs and move the jobs.

        Arguments:
            jobs: each with its queue list, and its outcome, which is filled in.
            able: whether each queue list can take jobs.
            ours: whether this call has locked the job.
        """
        calls, called = [], []
        warnings = results.forget(
            job for (job, *_), takes, mine in zip(jobs, able, ours, strict=True) if takes and mine
        )
        for (job, target, outcome), mine in zip(jobs, ours, strict=True):
            if not mine:
                outcome.queue, outcome.error = None, BUSY.format(job.id)
                continue
            outcome.warning = warnings.get(job.id)
            # Where the queue is none, the script says so, and lets go of the job.
            expires = self._expires.get(target.partition(self.separator)[0], 0)
            calls.append((job, target, expires))
            called.append(outcome)
        for outcome, reply in zip(called, self.put_back(calls), strict=True):
            if isinstance(reply, Exception):
                outcome.error = printable(reply)
            elif not reply:
                outcome.queue, outcome.error = None, GONE.format(outcome.id)

    def _target(self, job: DeadJob, to: str | None) -> str:
        """Return the queue list for a job: its own, or that of queue ``to`` in its priority."""
        if to is None:
            return job.queue_list
        _, separator, step = job.queue_list.partition(self.separator)
        return to if self.separator in to else f"{to}{separator}{step}"

    @lazy_property
    def _expires(self) -> dict[str, int]:
        """Queue -> ms of its x-expires, as kombu makes them of the app's queues."""
        with routes_of(self.app) as routes:
            return {name: routes.expires_of(name) for name in self.app.amqp.queues}
