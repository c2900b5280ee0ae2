"""Deletes the results of dead-lettered jobs that are put back on their queues: they become pending
again.

``DeadSet.retry_many`` (``app/dead_set.py``) calls ``DeadResults.forget`` for a batch of jobs that
it has locked, before it moves them. If the process dies in between, a job has no result any more
and is still in the dead set: a caller that waits for it waits until the job was retried once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery import Celery, states
from celery.backends.base import DisabledBackend
from celery.backends.redis import RedisBackend

from ..model.dead_job import DeadJob
from ..model.foreign import describe

#: Failures in a row after which the result backend is not asked again: one that is away would hold
#: up each job.
BACKEND_FAILURES_MOST = 3

#: States of a result that stays: a SUCCESS is of a job that had ended, whose ack alone was lost.
KEPT = frozenset({states.PENDING, states.SUCCESS})


class DeadResults:
    """The results of an app's dead jobs, for one command."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._failures = 0

    def forget(self, jobs: Iterable[DeadJob]) -> Mapping[str, str]:
        """Make the results of some jobs pending again, but for each SUCCESS.

        Returns:
            id in the dead set -> the text of a warning, of each job whose result stayed.
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
        why = "the result backend has failed before"
        if self._failures < BACKEND_FAILURES_MOST:
            try:
                forget(backend, [str(job.task_id) for job in jobs])
            except Exception as exc:  # whatever the backend raises: the jobs run all the same
                self._failures += 1
                why = describe(exc)
            else:
                self._failures = 0
                return {}
        return {
            job.id: f"the result of {job.task_id} stays as it is until the job has run ({why})"
            for job in jobs
        }


def _forget_one_by_one(backend: Any, task_ids: Sequence[str]) -> None:
    for task_id in task_ids:
        if backend.get_state(task_id) not in KEPT:
            backend.forget(task_id)


def _forget_on_redis(backend: RedisBackend, task_ids: Sequence[str]) -> None:
    """Read all results in one command, and delete in another: one by one, 10,000 jobs would take
    three round trips each."""
    keys = [backend.get_key_for_task(task_id) for task_id in task_ids]
    stored = zip(task_ids, keys, backend.mget(keys), strict=True)
    gone = [
        (task_id, key)
        for task_id, key, payload in stored
        if payload is not None and backend.decode_result(payload)["status"] not in KEPT
    ]
    if gone:
        backend.client.delete(*(key for _, key in gone))
        for task_id, _ in gone:
            backend.result_consumer.cancel_for(task_id)  # as its ``forget`` does
