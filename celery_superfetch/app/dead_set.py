"""The dead set of a Celery app, for people and their programs; the commands use it, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from celery import Celery, states
from celery.backends.base import DisabledBackend
from redis import Redis

from ..errors import JobNotFound, WrongType
from ..model.dead_job import DeadFilter, DeadJob
from ..store.database import Database
from ..store.dead_jobs import BATCH, SEPARATOR, DeadJobs
from ..store.queues import Queues
from .broker import client_of, config_of

#: Results in a row that could not be forgotten, after which the others are left as they are:
#: a result backend that is away must not hold up a thousand jobs one by one.
BACKEND_FAILURES = 3

BUSY = (
    "job {!r} is being put back by somebody else at this moment; if that is given up, it can be "
    "retried in a minute"
)


@dataclass(frozen=True)
class Retried:
    """What became of one job that was to be put back."""

    id: str
    task: str | None = None
    task_id: str | None = None
    #: The queue list it is on.
    queue: str | None = None
    #: Why it is still in the dead set, or not there any more; None: it is on its queue.
    error: str | None = None
    #: What else went wrong: its result still says FAILURE.
    warning: str | None = None


class DeadSet:
    """Killed jobs of the app's broker, newest first.

    >>> with DeadSet(app) as dead:
    ...     dead.retry_all(task="shop.charge", newer_than=3600)

    Wherever jobs are picked, the conditions are those of ``DeadFilter``: ``task``, ``queue``,
    ``reason``, ``older_than``, ``newer_than``. A job is named by its id or its Celery task
    id, or the start of either.

    Arguments:
        client: a client for the broker's database; None: one of its own, for ``close``.

    Raises:
        ConfigError: an option of the app is unknown or impossible.
        UnsupportedBroker: the app's broker is not Redis.
        redis.exceptions.RedisError: it cannot be reached.
    """

    def __init__(self, app: Celery, client: Redis | None = None) -> None:
        config, options = config_of(app), app.conf.broker_transport_options or {}
        self.app = app
        self._backend_failures = 0
        self._owns_client = client is None
        database = Database(client or client_of(app), config)
        self._set = DeadJobs(database, str(options.get("sep") or SEPARATOR))

    def close(self) -> None:
        """Close the connection, if it is its own."""
        if self._owns_client:
            self._set.client.close()

    def __enter__(self) -> DeadSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._set.size()

    def __iter__(self) -> Iterator[DeadJob]:
        return self._set.find()

    def page(self, first: int = 0, count: int = 50, **conditions: Any) -> list[DeadJob]:
        """``count`` of the jobs that are meant, from the ``first`` newest on."""
        return self._set.page(first, count, DeadFilter(**conditions))

    def find(self, **conditions: Any) -> Iterator[DeadJob]:
        """All jobs that are meant; they may be moved or deleted on the way."""
        return self._set.find(DeadFilter(**conditions))

    def get(self, id: str) -> DeadJob:
        """One job.

        Raises:
            JobNotFound: no such job, or the name fits several.
        """
        return self._set.get(id)

    def retry(self, job: DeadJob | str, to: str | None = None) -> Retried:
        """Put one job back at the end of its queue, counters cleared and its result pending again.

        Arguments:
            to: another queue to put it on; it keeps its priority.

        Raises:
            JobNotFound: it is not in the dead set, or somebody else was quicker.
            WrongType: the queue's key holds something else.
        """
        [done] = self.retry_many([job], to)
        if done.error is None:
            return done
        raise (JobNotFound if done.queue is None else WrongType)(done.error)

    def retry_many(
        self,
        jobs: Iterable[DeadJob | str],
        to: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> list[Retried]:
        """Put some jobs back; one that cannot be does not hold up the others.

        Returns:
            what became of each, in order.

        Arguments:
            to: another queue to put them on; they keep their priorities.
            progress: called after each batch with the number of jobs that are done with.
        """
        self._backend_failures = 0
        done: list[Retried] = []
        queue = iter(jobs)
        while batch := list(islice(queue, BATCH)):
            found = [self._found(job) for job in batch]
            retried = iter(self._retry([job for job in found if isinstance(job, DeadJob)], to))
            done += [job if isinstance(job, Retried) else next(retried) for job in found]
            if progress is not None:
                progress(len(done))
        return done

    def retry_all(
        self,
        to: str | None = None,
        progress: Callable[[int], object] | None = None,
        **conditions: Any,
    ) -> list[Retried]:
        """Put all jobs back that are meant, those first that died first."""
        jobs = self._set.find(DeadFilter(**conditions), oldest_first=True)
        return self.retry_many(jobs, to, progress)

    def delete(self, *ids: str) -> int:
        """Delete jobs for good, by their whole ids; the number that were there."""
        return self._set.delete(*ids)

    def purge(self) -> int:
        """Delete all that are in the dead set now; their number."""
        return self._set.purge()

    def _found(self, job: DeadJob | str) -> DeadJob | Retried:
        try:
            return job if isinstance(job, DeadJob) else self._set.get(job)
        except JobNotFound as exc:
            return Retried(str(job), error=str(exc))

    def _retry(self, jobs: Sequence[DeadJob], to: str | None) -> list[Retried]:
        """A batch, in order. No result is forgotten of a job that stays in the dead set."""
        targets = [self._target(job, to) for job in jobs]
        able, ours = Queues(self._set.database).can_take(targets), self._set.reserve(jobs)
        done, revived = [], []
        for job, target, takes, mine in zip(jobs, targets, able, ours, strict=True):
            one = Retried(job.id, job.task, job.task_id, error=BUSY.format(job.id))
            if mine:
                warning = self._forget_result(job) if takes and job.task_id else None
                one = replace(one, queue=target, error=None, warning=warning)
                # Where the queue is none, the script says so, and lets go of the job.
                expires = self._expires.get(target.partition(self._set.separator)[0], 0)
                revived.append((job, target, expires))
            done.append(one)
        replies = iter(self._set.revive_all(revived))
        return [one if one.error else _outcome(one, next(replies)) for one in done]

    def _target(self, job: DeadJob, to: str | None) -> str:
        if to is None:
            return job.queue_list
        _, separator, step = job.queue_list.partition(self._set.separator)
        return to if self._set.separator in to else f"{to}{separator}{step}"

    def _forget_result(self, job: DeadJob) -> str | None:
        """Make a job's result pending again; the text of a warning where that fails.

        A SUCCESS stays: the job had ended, and only its ack was lost.
        """
        backend = (self.app.tasks.get(job.task) or self.app).backend
        if isinstance(backend, DisabledBackend):
            return None
        stays = f"the result of {job.task_id} stays as it is until the job has run"
        if self._backend_failures >= BACKEND_FAILURES:
            return f"{stays} (the result backend has failed before)"
        try:
            if backend.get_state(job.task_id) not in (states.PENDING, states.SUCCESS):
                backend.forget(job.task_id)
        except Exception as exc:  # whatever the backend raises: the job runs all the same
            self._backend_failures += 1
            return f"{stays} ({exc!r})"
        self._backend_failures = 0
        return None

    @cached_property
    def _expires(self) -> dict[str, int]:
        """Queue -> ms of its x-expires, as kombu makes them of the app's queues."""
        queues = self.app.amqp.queues.values()
        with self.app.connection_for_read() as connection:
            channel = connection.channel()
            for queue in queues:
                queue.queue_declare(channel=channel)  # it only reads a length
            return {queue.name: channel.expires_of(queue.name) for queue in queues}


def _outcome(one: Retried, reply: Any) -> Retried:
    if isinstance(reply, Exception):
        return replace(one, error=str(reply))
    if reply == 0:
        error = f"no job {one.id!r} in the dead set: somebody else was quicker"
        return replace(one, queue=None, error=error)
    return one
