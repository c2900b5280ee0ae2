"""The guard: caps how often a job may be recovered, and tells the caller of a killed one."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from celery import Celery, signals, states
from celery.app.task import Context
from celery.utils.log import get_logger
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.utils.json import loads

from .connection import config_of
from .dead_set import DeadJob
from .errors import PoisonPill
from .recovery import Decision, Limits, Recovery, decide

logger = get_logger(__name__)


def guard_of(app: Celery) -> Callable[..., Decision]:
    """The receiver of ``job_recovering`` that ships, for one app."""

    def guard(recovery: Recovery, **_: Any) -> Decision:
        decision = decide(recovery)
        if decision is Decision.KILL and recovery.parsed:
            return _spare_strangers(app, config_of(app).app_name, recovery)
        return decision

    guard.shipped = True  # type: ignore[attr-defined]
    return guard


def limits_of(app: Celery) -> Limits:
    """When jobs of ``app`` are killed: its options, and what its tasks say of themselves."""
    config = config_of(app)

    def strikes(name: str | None) -> int | None:
        task = app.tasks.get(name)
        limit: int | None = getattr(task, "superfetch_strike_limit", config.strike_limit)
        return limit

    return Limits(strikes, config.recovery_limit)


def _spare_strangers(app: Celery, app_name: str, recovery: Recovery) -> Decision:
    """Kill only what is one's own: another app may give the task other limits, or none."""
    stranger = (
        f"belongs to app {recovery.app_name!r}"
        if recovery.app_name != app_name
        else "is of a task this app does not have"
        if recovery.task not in app.tasks
        else ""
    )
    if not stranger:
        return Decision.KILL
    logger.warning(
        "Job %s reached its limit (%d strikes, %d recoveries) but %s: it was recovered, not "
        "killed. A worker of its own app has to be the one that reaps it.",
        recovery.title,
        recovery.strikes,
        recovery.recoveries,
        stranger,
    )
    return Decision.RECOVER


def announce(app: Celery, job: DeadJob) -> bool:
    """Tell the caller of a killed job: result, errbacks, chord and ``task_failure``.

    Returns:
        True when that is done or there is nobody to tell; False when it is not ours to tell.

    Raises:
        Exception: whatever the result backend raises; a later pass tries again.
    """
    if job.task is None or job.task_id is None:
        return True
    if job.app_name != config_of(app).app_name or job.task not in app.tasks:
        return False
    task = app.tasks[job.task]
    request = _context(app, job)
    exc = PoisonPill(
        f"Job {job.task}[{job.task_id}] was killed after {job.strikes} strikes and "
        f"{job.recoveries} recoveries (last: {job.reason}; owner {job.owner}). It is in the dead "
        f"set as {job.id}."
    )
    ignored = bool(request.ignore_result or task.ignore_result)
    if not ignored and task.backend.get_state(job.task_id) == states.SUCCESS:
        return True  # it had finished; only its ack never came through
    task.backend.mark_as_failure(
        job.task_id,
        exc,
        request=request,
        store_result=not ignored or bool(task.store_errors_even_if_ignored),
    )
    signals.task_failure.send(
        sender=task,
        task_id=job.task_id,
        exception=exc,
        args=request.args,
        kwargs=request.kwargs,
        traceback=None,
        einfo=None,
    )
    return True


def _context(app: Celery, job: DeadJob) -> Context:
    """The request as the worker would have seen it, as far as the payload can be read."""
    raw = loads(job.payload.decode())
    properties = raw["properties"]
    headers = dict(raw.get("headers") or {})
    fields = {
        **headers,
        "id": job.task_id,
        "task": job.task,
        "delivery_info": properties.get("delivery_info") or {},
        "correlation_id": properties.get("correlation_id"),
        "reply_to": properties.get("reply_to"),
        "properties": properties,
        "hostname": job.owner,
    }
    try:
        args, kwargs, embed = _body(app, raw, properties, headers)
    except Exception:  # the caller is told all the same; only callbacks cannot be run
        logger.warning(
            "The body of killed job %s[%s] cannot be decoded: its caller is told, but its "
            "errbacks and chord are unknown.",
            job.task,
            job.task_id,
            exc_info=True,
        )
        args, kwargs, embed = [], {}, {}
    return Context({**fields, "args": args, "kwargs": kwargs, **embed})


def _body(app: Celery, raw: Any, properties: Any, headers: Any) -> tuple[Any, Any, Any]:
    body = raw.get("body")
    if properties.get("body_encoding") == "base64":
        body = base64.b64decode(body)
    message = Message(
        body=body,
        content_type=raw.get("content-type"),
        content_encoding=raw.get("content-encoding"),
        headers=headers,
        properties=properties,
        postencode="utf-8",
        accept=prepare_accept_content(app.conf.accept_content),
    )
    decoded = message.decode()
    if isinstance(decoded, dict):  # protocol 1
        embed = {key: decoded.get(key) for key in ("callbacks", "errbacks", "chord")}
        return decoded.get("args", []), decoded.get("kwargs", {}), embed
    args, kwargs, embed = decoded
    return args, kwargs, embed or {}
