"""Deletes the stored failures of dead-lettered jobs that are put back on their queues, so that
their state is PENDING again.

``DeadSet.retry_many`` (``app/dead_set.py``) calls ``DeadResults.forget`` for a batch of jobs that
it has locked against other retries, before it moves them. If the process dies in between, a job has
no result any more and is still in the dead set: its caller waits until an operator, or the program
that called, retries the job once more. That is possible when the lock has expired, after a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery import Celery, states
from celery.backends.base import DisabledBackend
from celery.backends.redis import RedisBackend

from ..model.dead_job import DeadJob
from ..model.foreign import describe

#: Failures in a row after which the result backend is not asked again: if it is away, each job
#: would wait for it.
BACKEND_FAILURES_MOST = 3

#: States of a result that stays. A SUCCESS means that the job had ended, and only its ack was lost.
KEPT_STATES = frozenset({states.PENDING, states.SUCCESS})


class DeadResults:
    """The results of an app's dead jobs, for one command."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._failures = 0

    def forget(self, jobs: Iterable[DeadJob]) -> Mapping[str, str]:
        """Make the results of some jobs pending again, but for each SUCCESS.

        Returns:
            id in the dead set -> the text of a warning, for each job whose result could not be
            deleted.
        """
        jobs_by_backend: dict[int, tuple[Any, list[DeadJob]]] = {}
        for job in jobs:
            backend = (self._app.tasks.get(job.task) or self._app).backend
            if job.task_id and not isinstance(backend, DisabledBackend):
                jobs_by_backend.setdefault(id(backend), (backend, []))[1].append(job)
        warnings: dict[str, str] = {}
        for backend, some in jobs_by_backend.values():
            if isinstance(backend, RedisBackend):
                warnings |= self._try(some, _forget_on_redis, backend)
                continue
            for job in some:
                warnings |= self._try([job], _forget_one_by_one, backend)
        return warnings

    def _try(self, jobs: Sequence[DeadJob], forget: Any, backend: Any) -> dict[str, str]:
        why = "the result backend failed for several jobs in a row"
        if self._failures < BACKEND_FAILURES_MOST:
            try:
                forget(backend, [str(job.task_id) for job in jobs])
            except Exception as exc:  # of any backend: the jobs run all the same
                self._failures += 1
                why = describe(exc)
            else:
                self._failures = 0
                return {}
        return {
            job.id: (
                f"the result of {job.task_id} still shows the failure until the job has run ({why})"
            )
            for job in jobs
        }


def _forget_one_by_one(backend: Any, task_ids: Sequence[str]) -> None:
    for task_id in task_ids:
        if backend.get_state(task_id) not in KEPT_STATES:
            backend.forget(task_id)


def _forget_on_redis(backend: RedisBackend, task_ids: Sequence[str]) -> None:
    """Read all results in one command, and delete in another: one by one, 10,000 jobs would take
    three round trips each."""
    keys = [backend.get_key_for_task(task_id) for task_id in task_ids]
    stored = zip(task_ids, keys, backend.mget(keys), strict=True)
    gone = [
        (task_id, key)
        for task_id, key, payload in stored
        if payload is not None and backend.decode_result(payload)["status"] not in KEPT_STATES
    ]
    if gone:
        backend.client.delete(*(key for _, key in gone))
        for task_id, _ in gone:
            backend.result_consumer.cancel_for(task_id)  # as the backend's ``forget`` does
