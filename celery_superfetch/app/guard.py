"""The guard: decides whether a job whose run was cut short runs again, or is dead-lettered because
it has reached its limit. Only a process of the job's own app dead-letters it.

``installation`` connects the guard to ``job_recovering``. The signal is sent by a reaper, for the
jobs of a dead owner, and by a worker, for a job that lost its pool process, or its run, while the
worker lives. Both have their limits from ``limits_of``. Nothing is changed here: if the process
dies after the decision and before the script that carries it out, the next recovery of the job
decides again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from ..errors import ConfigError
from ..model.config import check
from ..model.foreign import describe
from ..model.log_text import one_line_each
from ..model.strikes import Decision, Limits, Recovery, decide, toll
from .broker import config_of

logger = one_line_each(get_logger(__name__))


def guard_of(app: Celery) -> Callable[..., Decision]:
    """Return the receiver of ``job_recovering`` that the package brings. A job of another app, and
    of a task that the app does not have, is recovered even at its limit."""

    def guard(recovery: Recovery, **_: Any) -> Decision:
        decision = decide(recovery)
        if decision is Decision.RECOVER or not recovery.parsed:
            return decision
        if recovery.app_name != config_of(app).app_name:
            stranger = f"belongs to app {recovery.app_name!r}"
        elif recovery.task not in app.tasks:
            stranger = "is of a task this app does not have"
        else:
            return decision
        logger.warning(
            "Job %s reached its limit (%s) but %s: it was recovered, not "
            "killed. A worker of its own app has to be the one that reaps it.",
            recovery.title,
            toll(recovery.strikes, recovery.recoveries, recovery.stops),
            stranger,
        )
        return Decision.RECOVER

    # By this ``reaper.recovery.decision_of`` knows it: the answer of another receiver outweighs it.
    guard.shipped = True  # type: ignore[attr-defined]
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
    """Return a task's own value for an option that limits something; None: there is no limit."""
    limit: int | None = getattr(app.tasks.get(task), f"superfetch_{option}", default)
    try:
        if limit is not None:
            check({option: limit})
    except ConfigError:
        _log_bad_limit(str(task), option, describe(limit), default)
        return default
    return limit


@cache
def _log_bad_limit(task: str, option: str, limit: str, instead: int | None) -> None:
    """Log once in this process that the option's own value (``instead``) holds for a task."""
    logger.error(
        "Task %s: superfetch_%s must be None or a whole number greater than 0, it is %s. "
        "The option's own (%s, %s) holds instead.",
        task,
        option,
        limit,
        option,
        instead,
    )
