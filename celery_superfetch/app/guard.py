"""The guard: decides whether a job whose run was cut short runs again, or is dead-lettered because
it has reached its limit. Only a process of the job's own app dead-letters it.

A *recovery* puts a job whose run was cut short back on its queue, and counts that. It is a *strike*
if the job itself may have killed the process, and a *stop* if the worker was stopping. The limits
of a job are numbers of strikes and of stops.

``installation`` connects the guard to ``job_recovering``. A reaper sends the signal for the jobs of
a dead owner (the part of a worker that claims jobs). A worker sends it for a job whose pool process
was lost, or which it failed to start, while the worker lives. Both have their limits from
``limits_of``. Nothing is changed here: if the process dies after the decision and before the script
that carries it out, the next recovery of the job decides again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from ..model.config import check
from ..model.foreign import describe
from ..model.log_text import one_line_each
from ..model.strikes import Decision, Limits, Recovery, decide, strike_summary
from .broker import config_of

logger = one_line_each(get_logger(__name__))


def guard_of(app: Celery) -> Callable[..., Decision]:
    """Return the package's own receiver of ``job_recovering``. It recovers a job of another app, or
    of a task that the app does not have, even at its limit. A payload that is no message belongs to
    no app: any process may dead-letter it."""

    def guard(recovery: Recovery, **_: Any) -> Decision:
        decision = decide(recovery)
        if decision is Decision.RECOVER or not recovery.parsed:
            return decision
        if recovery.app_name != config_of(app).app_name:
            stranger = f"it belongs to app {recovery.app_name!r}"
        elif recovery.task not in app.tasks:
            stranger = "its task is not registered in this app"
        else:
            return decision
        logger.warning(
            "Job %s reached its limit (%s) but was not moved to the dead set, and runs again: %s. "
            "It is moved there when a worker of its own app recovers it: keep such a worker "
            "running.",
            recovery.title,
            strike_summary(recovery.strikes, recovery.recoveries, recovery.stops),
            stranger,
        )
        return Decision.RECOVER

    # ``reaper.recovery.decision_of`` prefers the answer of any other receiver to that of this one.
    guard.is_default = True  # type: ignore[attr-defined]
    return guard


def limits_of(app: Celery) -> Limits:
    """Return the limits at which jobs are dead-lettered: the app's options, and those of its tasks
    (``superfetch_strike_limit``, ``superfetch_stop_limit``)."""
    config = config_of(app)

    def strikes(task: str | None) -> int | None:
        return _limit(app, task, "strike_limit", config.strike_limit)

    def stops(task: str | None) -> int | None:
        return _limit(app, task, "stop_limit", config.stop_limit)

    return Limits(strikes, config.recovery_limit, stops)


def _limit(app: Celery, task: str | None, option: str, default: int | None) -> int | None:
    """Return a task's own value for an option that limits something, the app's (``default``) if it
    has none; None: there is no limit."""
    try:
        limit: int | None = getattr(app.tasks.get(task), f"superfetch_{option}", default)
    except Exception as exc:  # of a property. Raised here, it would end one worker after another.
        _log_bad_limit(str(task), option, describe(exc), default)
        return default
    try:
        if limit is not None:
            check({option: limit})
    except Exception:  # ConfigError, or an error of the value's own comparison
        _log_bad_limit(str(task), option, describe(limit), default)
        return default
    return limit


@lru_cache(1000)  # not without bounds: a property may give another value each time
def _log_bad_limit(task: str, option: str, limit: str, instead: int | None) -> None:
    """Log once in this process that the app's value (``instead``) holds for a task."""
    logger.error(
        "Task %s: superfetch_%s must be None or a whole number greater than 0, got %s. The app's "
        "option is used instead (%s=%s). Fix the task.",
        task,
        option,
        limit,
        option,
        instead,
    )
