"""Tells which results Celery does not store: task and message may disagree, and the versions of
Celery decide that differently.

``steps`` asks before a run, since an earlier run may have stored its result, and ``announcement``
before it stores the failure of a dead-lettered job. Pure functions: a death loses nothing.

Foreign names:

celery app.
    store a failure where Celery would: trace:get_actual_ignore_result(task,request)>=5.6
"""

from __future__ import annotations

from typing import Any

from celery.app import trace
from celery.app.task import Context


def ignores_result(task: Any, request: Context) -> bool:
    """Return whether Celery stores no success of this run.

    Celery 5.6 and later let the message decide where it says anything. Earlier versions ignore the
    result as soon as the task or the message asks for it.
    """
    decide = getattr(trace, "get_actual_ignore_result", None)
    if decide is None:
        return bool(task.ignore_result or request.ignore_result)
    return bool(decide(task, request))


def stores_failure(task: Any, request: Context) -> bool:
    """Return whether Celery stores a failure of this run; before 5.6 the task alone decides."""
    decide = getattr(trace, "get_actual_ignore_result", None)
    ignored = task.ignore_result if decide is None else decide(task, request)
    return not ignored or bool(task.store_errors_even_if_ignored)
