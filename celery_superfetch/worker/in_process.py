"""Pools that run jobs in the worker's own process (threads, greenlets, solo): where Celery's code
around a job's body raises, a thread or a greenlet swallows it, and the worker's own thread ends."""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.utils.log import get_logger

from .outcomes import exception_of, info_of
from .prefork import request_of
from .settling import call_back
from .unreceivable import is_trouble

logger = get_logger(__name__)

#: What a task raises to stop its worker. Celery lets both through, and the job would stay in flight
#: until the worker has ended, which gave it back without a strike: worker after worker ended by it.
ENDS_OF_WORKERS = WorkerShutdown, WorkerTerminate


def settle_failures(target: Any, options: dict[str, Any], inline: bool) -> Any:
    """What to run instead of ``target``, so that the job fails then, as in a process, and does not
    stay in flight. ``inline``: a result backend that is away is left to the worker's own thread,
    as a lost connection."""
    succeed, fail = options.get("callback"), options.get("error_callback")
    id, request = options.get("correlation_id"), request_of(options.get("accept_callback"))
    if succeed is None or fail is None:
        return target, options

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except ENDS_OF_WORKERS as exc:
            # A cold shutdown raises the same on top of a solo pool's job, which it has cut short.
            if not getattr(request, "_already_cancelled", False):
                call_back(request, inline, fail, info_of(exc))
            raise
        except Exception as exc:
            info = info_of(exc)
            # A plain one, where that of the user would fail whatever looks at it.
            error = exception_of(info)
            if inline and is_trouble(error):
                raise
            logger.error(
                "Celery failed around the body of job %s: the job has failed.", id, exc_info=error
            )
            return info

    def ended(result: Any) -> None:
        (fail if isinstance(result, ExceptionInfo) else succeed)(result)

    vars(run)["__wrapped__"] = target  # by which a tracer is known
    return run, {**options, "callback": ended}
