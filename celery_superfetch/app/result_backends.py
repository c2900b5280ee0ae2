"""What is added to the result backends of an app that are on Redis: chords that count their parts
once, and successes that nothing undoes."""

from __future__ import annotations

from typing import Any

from celery import Celery, Task
from redis.commands.core import Script
from redis.exceptions import ResponseError

from .chords import count_parts_once, is_on_redis
from .refusals import patiently

SUCCESS = '{"status": "SUCCESS"'  # how Celery's JSON of a job that succeeded begins

#: Stores what is no success, as Celery does, unless one is there.
#: KEYS: the result
#: ARGV: what to store, seconds until it expires (0: never), how a success begins
STORE = Script(
    None,  # type: ignore[arg-type]  # whoever calls it says by which client
    b"""
local key, value, expires, success = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
if redis.call('GETRANGE', key, 0, #success - 1) == success then
  return
end
redis.call('SET', key, value, unpack(expires > 0 and {'EX', expires} or {}))
redis.call('PUBLISH', key, value)
""",
)


def mend_backends(app: Celery) -> None:
    """Mend all result backends on Redis that ``app`` makes, and those that are there."""
    make = app._get_backend
    app._get_backend = lambda: mended(make())
    if app._backend is not None:
        mended(app._backend)


def mend_backends_of_tasks(sender: Celery, **_: Any) -> None:
    """The same for backends that tasks have for themselves."""
    for task in sender.tasks.values():
        mended(own_backend(task))


def own_backend(task: Any) -> Any:
    """The result backend that a task has for itself, if it has one."""
    own = type(task).backend
    return task._backend if own is Task.backend else own


def mended(backend: Any) -> Any:
    """The same result backend; one on Redis is mended, if it is not yet."""
    if is_on_redis(backend) and "_set" not in vars(backend):
        count_parts_once(backend)
        keep_success(backend)
    return backend


def keep_success(backend: Any) -> None:
    """Celery asks whether a job has succeeded, and then stores its retry or its failure. A process
    that froze in between would undo what its successor has told, and its caller wait for ever."""
    store = backend._set

    def _set(key: Any, value: Any, *expires: Any) -> None:
        patiently(lambda: put(key, value, *expires), "store its result")

    def put(key: Any, value: Any, *expires: Any) -> None:
        if not isinstance(value, str) or value.startswith(SUCCESS):
            return store(key, value, *expires)
        given = next(iter(expires), None)
        seconds = (backend.expires if given is None else given) or 0
        try:
            STORE([key], [value, int(seconds), SUCCESS], client=backend.client)
        except ResponseError:  # scripts may be forbidden there
            store(key, value, *expires)

    vars(backend)["_set"] = _set
