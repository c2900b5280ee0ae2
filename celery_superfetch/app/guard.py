"""The guard: kills a job at its last strike, if that is its own; each task may have a limit."""

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
    """The receiver of ``job_recovering`` that ships; of another app it kills no job."""

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

    guard.shipped = True  # type: ignore[attr-defined]
    return guard


def limits_of(app: Celery) -> Limits:
    """When jobs of ``app`` are killed: its options, and what its tasks say of themselves."""
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
        _refuse(str(task), option, describe(limit), default)
        return default
    return limit


@cache
def _refuse(task: str, option: str, limit: str, instead: int | None) -> None:
    """Log it once: the task's author has to know, and its jobs need some limit."""
    logger.error(
        "Task %s: superfetch_%s must be None or a whole number greater than 0, it is %s. "
        "The option's own (%s, %s) holds instead.",
        task,
        option,
        limit,
        option,
        instead,
    )
