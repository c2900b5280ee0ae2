"""Pools that run jobs in the worker's own process (threads, greenlets, solo): where Celery's code
around a job's body raises, a thread or a greenlet swallows it, and the worker's own thread ends."""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionInfo
from celery.utils.log import get_logger

from .unreceivable import is_trouble

logger = get_logger(__name__)


def settle_failures(target: Any, options: dict[str, Any], inline: bool) -> Any:
    """What to run instead of ``target``, so that the job fails then, as in a process, and does not
    stay in flight. ``inline``: a result backend that is away is left to the worker's own thread,
    as a lost connection."""
    succeed, fail = options.get("callback"), options.get("error_callback")
    id = options.get("correlation_id")
    if succeed is None or fail is None:
        return target, options

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception as exc:
            if inline and is_trouble(exc):
                raise
            logger.exception("Celery failed around the body of job %s: it has failed.", id)
            return ExceptionInfo()

    def ended(result: Any) -> None:
        if not isinstance(result, ExceptionInfo):
            return succeed(result)
        try:
            fail(result)
        except Exception as exc:
            if inline and is_trouble(exc):
                raise
            logger.exception(
                "The failure of job %s could not be stored or told: whoever waits for its result "
                "waits on. See whether the result backend answers.",
                id,
            )

    vars(run)["__wrapped__"] = target  # by which a tracer is known
    return run, {**options, "callback": ended}
