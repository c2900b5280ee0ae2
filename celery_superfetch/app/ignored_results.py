"""Decides whether Celery stores a result: task and message may disagree, and the versions of Celery
treat that differently.

``steps`` asks before a run whether an earlier run of the job can have stored a result: if results
are ignored, it reads none. ``announcement`` asks before it stores the failure of a dead-lettered
job. Pure functions: a death loses nothing.
"""

from __future__ import annotations

from typing import Any

import celery
from celery.app.task import Context

#: True if the option of a message takes the place of the task's own.
MESSAGE_DECIDES = celery.VERSION >= (5, 6)


def ignores_result(task: Any, request: Context) -> bool:
    """Return True if Celery does not store a success of this run.

    In Celery 5.6 and later the message decides, if it has the option. Earlier versions ignore the
    result as soon as the task or the message asks for it.
    """
    if MESSAGE_DECIDES:
        return _ignored(task, request)
    return bool(task.ignore_result or request.ignore_result)


def stores_failure(task: Any, request: Context) -> bool:
    """Return whether Celery stores a failure of this run; before 5.6 the task alone decides."""
    ignored = _ignored(task, request) if MESSAGE_DECIDES else task.ignore_result
    return not ignored or bool(task.store_errors_even_if_ignored)


def _ignored(task: Any, request: Context) -> bool:
    """Return the option ``ignore_result`` of a message; that of its task if it has none."""
    # A ``Context`` has False for each option that its message lacks.
    option = vars(request).get("ignore_result")
    return bool(task.ignore_result if option is None else option)
