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
    "job {!r} is being put back by another process at this moment; if that process dies, it can be "
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


@dataclass
class _Retry:
    """A job that is being put back."""

    job: DeadJob
    target: str  # the queue list
    outcome: Retried
    target_takes_jobs: bool = False  # if not, its key holds something else than a list
    is_locked: bool = False  # this call has the job's lock


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
        """Put a batch back, in order. Only jobs that can be moved lose their results."""
        outcomes: list[Retried] = []
        retries: list[_Retry] = []
        by_id = self.exact_many([named for named in batch if isinstance(named, str)])
        for named in batch:
            try:
                job = named if isinstance(named, DeadJob) else by_id.get(named) or self.get(named)
            except JobNotFound as exc:
                outcomes.append(Retried(str(named), error=str(exc)))
                continue
            target = self._target(job, to)
            outcome = Retried(job.id, job.task, job.task_id, target)
            outcomes.append(outcome)
            if job.whole_bytes:
                outcome.error, outcome.is_cut = CUT.format(job.id, job.whole_bytes), True
            else:
                retries.append(_Retry(job, target, outcome))
        queues = Queues(self.database)
        takes_jobs = queues.can_take([retry.target for retry in retries])
        is_locked = self.reserve([retry.job for retry in retries])
        for retry, takes, locked in zip(retries, takes_jobs, is_locked, strict=True):
            retry.target_takes_jobs, retry.is_locked = takes, locked
        try:
            self._move(retries, results)
        except BaseException:  # Ctrl-C, too: else they could not be retried for a minute
            self.release([retry.job for retry in retries if retry.is_locked])
            raise
        queues.note({row.queue for row in outcomes if row.queue and not row.error})
        return outcomes

    def _move(self, retries: Sequence[_Retry], results: DeadResults) -> None:
        """Delete the results of the locked jobs and move these, and fill in what became of each."""
        locked = [retry for retry in retries if retry.is_locked]
        warnings = results.forget(retry.job for retry in locked if retry.target_takes_jobs)
        for retry in retries:
            outcome = retry.outcome
            if retry.is_locked:
                outcome.warning = warnings.get(retry.job.id)
            else:
                outcome.queue, outcome.error = None, BUSY.format(retry.job.id)
        # If the target is no queue, the script says so, and releases the job's lock.
        replies = self.put_back(
            [(retry.job, retry.target, self._expires_ms(retry)) for retry in locked]
        )
        for retry, reply in zip(locked, replies, strict=True):
            outcome = retry.outcome
            if isinstance(reply, Exception):
                outcome.error = printable(reply)
            elif not reply:
                outcome.queue, outcome.error = None, GONE.format(outcome.id)

    def _expires_ms(self, retry: _Retry) -> int:
        """Return the x-expires (ms) of the queue that a job is put on; 0: it has none."""
        return self._expires.get(retry.target.partition(self.separator)[0], 0)

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
