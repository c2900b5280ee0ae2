"""The shop, with poison pills of every kind and everybody who can be told of their death.

KILL=1 kills each job that is to be recovered. HALF_WAY names a step at which the first process to
announce a pill is ended ("result", "count", "counted", "hook"), or each one (``ALWAYS``).
HANGS names a pill whose hook hangs until it is released.
"""

from __future__ import annotations

import os
import signal
import time
from functools import cached_property
from typing import Any

from celery.backends.redis import RedisBackend
from celery.signals import task_failure

from celery_superfetch import Decision, Recovery, job_killed, job_recovering
from celery_superfetch.app import announcement, backend_lock
from support.apps.build import STEP
from support.apps.shop import app, ledger

HALF_WAY = os.environ.get("HALF_WAY")
# Short, unless it is measured what the real ones cost.
backend_lock.BACKEND_PAUSE_S = int(os.environ.get("PAUSE", 3))
backend_lock.LOCK_EXPIRES_S = float(os.environ.get("HELD_OFF", 3))


#: Where each process ends, and not the first alone.
ALWAYS = {"always": "hook", "job_killed": "job_killed", "each question": "question"}


def crossing(step: str) -> None:
    """End the process that is first to come here, if it is here that it has to end."""
    if step == ALWAYS.get(HALF_WAY or "") or (step == HALF_WAY and ledger().first(step)):
        os.kill(os.getpid(), signal.SIGKILL)


class Told(app.Task):  # type: ignore[misc, name-defined]
    """A task that hears of its killed jobs."""

    def on_poisoned(self, exc: Any, task_id: str, args: Any, kwargs: Any) -> None:
        crossing("hook")
        if args[0] == os.environ.get("HANGS"):
            ledger().gave_up(args[0], "hangs")
            while not ledger().released(args[0]):
                time.sleep(STEP)
        same = self.request.id == task_id
        ledger().gave_up(args[0], "poisoned" if same else "poisoned, out of context")
        if args[0] == "careless":
            raise RuntimeError("a hook that fails")


@app.task(name="told.pill", base=Told, shared=False)
def pill(job: str) -> None:
    ledger().started(job)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="told.quiet", base=Told, ignore_result=True, shared=False)
def quiet(job: str) -> None:
    pill.run(job)


class ByProperty(Told):
    """Computes its result backend, which is that of the app."""

    @property
    def backend(self) -> Any:
        return self.app.backend


class ByCachedProperty(Told):
    """Computes a result backend of its own, once."""

    @cached_property
    def backend(self) -> Any:
        return RedisBackend(app=self.app, url=self.app.conf.result_backend)


for base in (ByProperty, ByCachedProperty):
    app.task(name=f"told.{base.__name__}", base=base, shared=False)(pill.run)


@app.task(name="told.fail", shared=False)
def fail(job: str) -> None:
    raise ValueError(f"{job} fails on purpose")


@app.task(name="told.quiet_fail", ignore_result=True, shared=False)
def quiet_fail(job: str) -> None:
    fail.run(job)


@app.task(name="told.note", shared=False)
def note(before: Any = None, who: str = "note") -> str:
    ledger().started(who)
    return who


@app.task(name="told.old", shared=False)
def old(task_id: str) -> None:
    ledger().gave_up(task_id, "old errback")


@app.task(name="told.new", shared=False)
def new(request: Any, exc: Exception, traceback: Any) -> None:
    ledger().gave_up(request.id, f"new errback: {type(exc).__name__}")


@task_failure.connect(weak=False)
def failed(sender: Any, task_id: str, args: Any, exception: Exception, **_: Any) -> None:
    if sender.request.id == task_id and type(exception).__name__ == "PoisonPill":
        ledger().gave_up(args[0], "task_failure")


@job_killed.connect(weak=False)
def killed(job: Any, **_: Any) -> None:
    crossing("job_killed")
    ledger().gave_up(job.task_id, "job_killed")


@job_recovering.connect(weak=False)
def kill(recovery: Recovery, **_: Any) -> Decision | None:
    ours = (recovery.task or "").startswith("told.")
    return Decision.KILL if ours and os.environ.get("KILL") == "1" else None


_ask, _store, _count = RedisBackend.get_task_meta, RedisBackend.store_result, announcement.fail_part


def get_task_meta(self: Any, *args: Any, **kwargs: Any) -> Any:
    crossing("question")
    return _ask(self, *args, **kwargs)


def store_result(self: Any, task_id: str, result: Any, state: str, **kwargs: Any) -> Any:
    ledger().gave_up(task_id, f"stored {state}")
    stored = _store(self, task_id, result, state, **kwargs)
    crossing("result")
    return stored


def fail_part(backend: Any, request: Any, exc: Exception, *steps: str) -> None:
    crossing("count")
    _count(backend, request, exc, *steps)
    crossing("counted")


RedisBackend.get_task_meta = get_task_meta
RedisBackend.store_result = store_result
announcement.fail_part = fail_part
app.finalize()
