"""Patches an app's result backends on Redis: a chord counts each part once, a retry or a failure
does not replace a success, and a call waits up to a minute for a server that refuses it, and
connects again meanwhile: its address may lead to another server.

``installation`` calls ``patch_backends`` and ``patch_backends_of_tasks`` in each process of the
app, and a worker that starts (``worker/bootsteps.py``) calls the latter again. ``announcement``
calls ``own_backend``. A worker's loop uses ``asked_once``. The patched methods run where a job
runs. If the process dies in one, the result is stored or it is not; the job is recovered (put back
on its queue), and its next run stores a result again.

A success is recognized in Celery's JSON alone: results of other serializers are stored as in stock
Celery. So is every result where the server forbids scripts to the result backend.

Foreign names:

celery
    find the result backends of an app and of its tasks: app.base:Celery._get_backend()
        app.base:Celery._backend app.task:Task._backend
    leave a server that refuses: backends.redis:RedisBackend._get_pool()
    keep a success: backends.redis:RedisBackend._set(key,value)
        backends.redis:RedisBackend.expires backends.redis:RedisBackend.client
    wait for a server that refuses a chord: backends.redis:RedisBackend.apply_chord(args,body)
        backends.redis:RedisBackend.set_chord_size(group_id,chord_size)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Any

from celery import Celery, Task
from redis.commands.core import Script
from redis.exceptions import ConnectionError, ResponseError

from ..model.step import running
from ..store.redis.connections import close_if_refused
from ..store.redis.server import is_temporary
from .chords import count_parts_once, is_on_redis
from .patient_calls import patiently

#: Guards the counts of ``asked_once``. Reentrant: a signal handler may call it.
_asked_once_lock = RLock()

SUCCESS = '{"status": "SUCCESS"'  # how Celery's JSON of a job that succeeded begins

#: Stores a result that is no success, as Celery does, unless a success is stored there.
#: KEYS: the result
#: ARGV: what to store, seconds until it expires (0: never), how a success begins
STORE = Script(
    None,  # type: ignore[arg-type]  # each call names its client
    b"""
local key, value, expires, success = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
if redis.call('GETRANGE', key, 0, #success - 1) == success then
  return
end
redis.call('SET', key, value, unpack(expires > 0 and {'EX', expires} or {}))
redis.call('PUBLISH', key, value)
""",
)


def patch_backends(app: Celery) -> None:
    """Patch the app's result backend, if it has made one, and each that it makes from now on."""
    make = app._get_backend
    app._get_backend = lambda: patch(make())
    if app._backend is not None:
        patch(app._backend)


def patch_backends_of_tasks(sender: Celery, **_: Any) -> None:
    """Patch the result backends that tasks of an app have for themselves."""
    for task in sender.tasks.values():
        try:
            backend = own_backend(task)
        except Exception:  # of a user's property, which may work later: a worker's start calls this
            continue
        patch(backend)


def own_backend(task: Any) -> Any:
    """Return the result backend that a task has for itself, set on its class or on the task; None
    if it uses that of its app."""
    class_backend = type(task).backend
    if class_backend is Task.backend:
        return task._backend
    if not hasattr(type(class_backend), "__get__"):
        return class_backend
    backend = task.backend  # a property of the user's class
    return None if backend is task.app.backend else backend


def patch(backend: Any) -> Any:
    """Patch a result backend, if it is on Redis and was not patched before, and return it."""
    if is_on_redis(backend) and "_set" not in vars(backend):  # ``keep_success`` sets it
        reconnect_if_refused(backend)
        count_parts_once(backend)
        keep_success(backend)
        store_patiently(backend)
    return backend


def reconnect_if_refused(backend: Any) -> None:
    """Make the connections of a result backend connect again after a refusal. After a failover
    behind one address, a pool process would otherwise write to the old primary for ever: each of
    its jobs would be requeued after ``PATIENCE_S``, and run again."""
    make_pool = backend._get_pool

    def _get_pool(**params: Any) -> Any:
        return close_if_refused(make_pool(**params))

    vars(backend)["_get_pool"] = _get_pool
    vars(backend).pop("client", None)  # if it was used before, its pool makes other connections


@contextmanager
def asked_once(backend: Any) -> Iterator[None]:
    """Make a result backend fail at once in this block, also with ``result_backend_always_retry``:
    the worker's loop, which calls it, would wait for it without end, and seem to hang. If several
    threads or greenlets are in such blocks of one backend, the last to leave restores the
    setting."""
    always_retry = vars(backend).setdefault(
        "superfetch_always_retry", getattr(backend, "always_retry", False)
    )
    with _asked_once_lock:
        _count_asked_once(backend, 1)
        backend.always_retry = False
    try:
        yield
    finally:
        with _asked_once_lock:
            is_last = not _count_asked_once(backend, -1)
            backend.always_retry = always_retry and is_last


def _count_asked_once(backend: Any, growth: int) -> int:
    """Add to the number of blocks of ``asked_once`` that a backend is in; return the sum."""
    count: int = getattr(backend, "superfetch_asked_once", 0) + growth
    backend.superfetch_asked_once = count
    return count


def keep_success(backend: Any) -> None:
    """Replace the method of a result backend that stores a result. Stock Celery reads whether a job
    has succeeded, and then stores its retry or its failure. If a process freezes in between, and
    the job succeeds elsewhere meanwhile, the success is replaced, and its caller waits for ever."""
    store = backend._set

    def _set(key: Any, value: Any, *expires: Any) -> None:
        if not isinstance(value, str) or value.startswith(SUCCESS):
            return store(key, value, *expires)
        lifetime = next(iter(expires), None)
        seconds = (backend.expires if lifetime is None else lifetime) or 0
        try:
            STORE([key], [value, int(seconds), SUCCESS], client=backend.client)
        except ResponseError as exc:
            if is_temporary(exc):  # if it was stored without the script, it could replace a success
                raise
            store(key, value, *expires)  # scripts may be forbidden there

    vars(backend)["_set"] = _set


def store_patiently(backend: Any) -> None:
    """Replace the methods of a result backend that store a result, the results of a group, or what
    it needs of a chord, by patient ones. To store a result Celery first reads the present one, and
    the server may refuse that, too: then the job would be acked, its result lost, and its chord
    would wait for ever. If a chord that follows a job, as the next link of its chain, could not be
    stored, the job would have failed, and the chord would never be sent."""
    backend.store_result = _patient(backend.store_result, "store its result")
    backend.save_group = _patient(backend.save_group, "store its group of results")
    backend.set_chord_size = _patient(backend.set_chord_size, "store the size of a chord")
    backend.apply_chord = _patient(backend.apply_chord, "store the parts of a chord")


def _patient(method: Callable[..., Any], action: str) -> Callable[..., Any]:
    """Return a method of a result backend that is called ``patiently``. ``action``: as there."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return patiently(lambda: _once_more_if_cut(partial(method, *args, **kwargs)), action)

    return call


def _once_more_if_cut(call: Callable[[], Any]) -> Any:
    """Call a result backend, once more at once if the connection is lost in the run of a job.
    Celery reads the present result before it stores one, and does not read again: if a proxy had
    closed the idle connection, the failure of a job that has succeeded would be stored."""
    try:
        return call()
    except ConnectionError:
        if running.get() is None:
            raise
        return call()
