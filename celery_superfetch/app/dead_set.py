"""The dead set of a Celery app: finds dead-lettered jobs and puts them back on their queues.
``DeadSetStore`` (``store/dead_set.py``), its parent, deletes them.

Users' programs, the commands (`superfetch dead`) and the console's web page make a ``DeadSet``. A
worker's pool process makes one to read the job that a failure notification is about
(``announcement``).

A retry locks a batch of jobs, deletes their old results, and moves each job by one script. If the
process dies, each job is in the dead set or on its queue. A job that is still in the dead set may
have lost its result, and no retry can take it until its lock has expired, after a minute; then the
operator has to retry it again. If the process dies right after the move, `status` may not show a
queue without a consumer on which the jobs now wait; a worker that consumes the queue finds them.
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
from ..store.dead_set import DEAD_BATCH
from ..store.queues import Queues
from .broker import client_of, database_of
from .dead_results import DeadResults
from .queues import routes_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

RETRY_UNDER_WAY = (
    "job {!r} is being retried by another process; if that process dies, try again in a minute"
)
GONE_MEANWHILE = "no job {!r} in the dead set: it was retried or deleted meanwhile"


@dataclass
class Retried:
    """The result of putting one dead job back on its queue."""

    id: str  #: its id in the dead set; what the caller gave, if no job was found
    task: str | None = None  #: name of its task
    task_id: str | None = None  #: Celery's id of the task
    #: The queue list (the Redis list of one queue and priority) of the retry. If there is an
    #: ``error``, the job was not put on that list. None: no such job was found, it left the dead
    #: set meanwhile, or another retry has locked it.
    queue: str | None = None
    #: The reason why it is still in the dead set, or gone; None if it is on its queue.
    error: str | None = None
    warning: str | None = None  #: why its old result could not be deleted
    is_cut: bool = False  #: only the first bytes of its message were kept: it cannot be put back


@dataclass
class _Retry:
    """A job that is being put back."""

    job: DeadJob
    target: str  # the queue list
    outcome: Retried
    target_takes_jobs: bool = False  # if not, its key holds something else than a list
    is_locked: bool = False  # this call has the job's lock


class DeadSet(store.DeadSetStore):
    """The dead-lettered jobs of the app's broker, newest first.

    >>> with DeadSet(app) as dead:
    ...     dead.retry_all(task="shop.charge", newer_than=3600)

    Some methods select jobs by conditions (``task``, ``queue``, ``reason``, ``older_than``,
    ``newer_than``). Others select a job by its id in the dead set, by its Celery task id, or by the
    start of either. ``delete`` takes only whole ids of the dead set (``job.id``).

    Iterate over it for all jobs, the newest first; ``len()`` says how many there are.

    Arguments:
        app: the app, after ``install(app)``.
        client: a client for the broker's database; None: the dead set makes one, and ``close``
            closes it.

    Raises:
        ConfigError: an option of the app is misspelt or impossible.
        UnsupportedBroker: the app's broker is not Redis.
        redis.exceptions.RedisError: the broker cannot be reached.
    """

    def __init__(self, app: Celery, client: Redis | None = None) -> None:
        super().__init__(database_of(app, client or client_of(app)))
        self.app = app
        self._owns_client = client is None

    def close(self) -> None:
        """Close the client, unless the caller gave it."""
        if self._owns_client:
            self.client.close()

    def __enter__(self) -> DeadSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def retry(self, job: DeadJob | str, to: str | None = None) -> Retried:
        """Put one job back at the end of its queue, or of another (``to``), in its old priority.
        Its strikes, recoveries and stops begin at 0 again, and its stored result is deleted unless
        it is a SUCCESS.

        Arguments:
            job: a job, or its id, or Celery's id of the task, or the start of either.
            to: name of the queue; None: its own.

        Raises:
            JobNotFound: it is not in the dead set (any more), or ``job`` is the start of several
                ids, or another process retries it at this moment.
            NotWhole: only the first bytes of its message were kept.
            WrongType: the queue's key holds something else than a list.
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
        """Put jobs back in order, each as ``retry`` does, and return the result of each. A job that
        cannot be put back does not hold up the others, and has an ``error``.

        Arguments:
            jobs: each as for ``retry``.
            to: name of the queue; None: their own.
            progress: called after each batch, with the number of jobs done so far.
        """
        results = DeadResults(self.app)
        done: list[Retried] = []
        queue = iter(jobs)
        while batch := list(islice(queue, DEAD_BATCH)):
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
        """Put all jobs back that meet the conditions, in the order in which they died.

        Arguments:
            to: name of the queue; None: their own.
            progress: called after each batch, with the number of jobs done so far.
            conditions: ``task``, ``queue``, ``reason``, ``older_than``, ``newer_than``; none: all
                jobs.

        Raises:
            BadFilter: a condition is empty, or no job could meet them all.
        """
        return self.retry_many(self.find(oldest_first=True, **conditions), to, progress)

    def _retry(
        self, batch: Sequence[DeadJob | str], to: str | None, results: DeadResults
    ) -> list[Retried]:
        """Put a batch back, in order. Only jobs that can be moved lose their results. ``reserve``
        and ``release`` lock and unlock a job against other retries."""
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
        except BaseException:  # also Ctrl-C: if they stayed locked, no retry could take them soon
            self.release([retry.job for retry in retries if retry.is_locked])
            raise
        # So that `status` shows a queue that no worker consumes.
        queues.add_notes({row.queue for row in outcomes if row.queue and not row.error})
        return outcomes

    def _move(self, retries: Sequence[_Retry], results: DeadResults) -> None:
        """Delete the results of the locked jobs, move the jobs, and fill in each ``Retried``."""
        locked = [retry for retry in retries if retry.is_locked]
        warnings = results.forget(retry.job for retry in locked if retry.target_takes_jobs)
        for retry in retries:
            outcome = retry.outcome
            if retry.is_locked:
                outcome.warning = warnings.get(retry.job.id)
            else:
                outcome.queue, outcome.error = None, RETRY_UNDER_WAY.format(retry.job.id)
        # If the target is no queue, the script says so, and releases the job's lock.
        replies = self.put_back(
            [(retry.job, retry.target, self._expires_ms(retry)) for retry in locked]
        )
        for retry, reply in zip(locked, replies, strict=True):
            outcome = retry.outcome
            if isinstance(reply, Exception):
                outcome.error = printable(reply)
            elif not reply:
                outcome.queue, outcome.error = None, GONE_MEANWHILE.format(outcome.id)

    def _expires_ms(self, retry: _Retry) -> int:
        """Return the x-expires (ms) of the queue that a job is put on; 0: it has none."""
        return self._expires.get(self.database.queue_of(retry.target), 0)

    def _target(self, job: DeadJob, to: str | None) -> str:
        """Return the queue list for a job: its own, or that of queue ``to`` in its priority. If
        ``to`` names a priority itself, it is a queue list already."""
        if to is None:
            return job.queue_list
        names = self.database.list_names
        if names.queue(to) != to:
            return to
        return names.of(to, names.split(job.queue_list)[1])

    @lazy_property
    def _expires(self) -> dict[str, int]:
        """Queue -> ms of its x-expires, as kombu makes them of the app's queues."""
        with routes_of(self.app) as routes:
            return {name: routes.expires_of(name) for name in self.app.amqp.queues}
