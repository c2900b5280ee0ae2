"""celery-batches hands many jobs to the pool as one, and asks not to be told of a lost child. With
stock they stay in flight until the visibility timeout; here none would end that."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from celery.utils.log import get_logger

logger = get_logger(__name__)

#: The requests of a batch that was cut short; their acks say only that they belong to it.
_named: ContextVar[list[Any] | None] = ContextVar("named", default=None)


def told_of_losses(target: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options for ``target``; if that is a batch, it is also told when it is cut short."""
    package = str(getattr(target, "__module__", "")).partition(".")[0]
    if package != "celery_batches" or "callback" not in options:
        return options
    return {"error_callback": partial(_cut_short, options["callback"]), **options}


def is_only_named(request: Any) -> bool:
    named = _named.get()
    if named is not None:
        named.append(request)
    return named is not None


def _cut_short(done: Callable[[Any], Any], exc_info: Any) -> None:
    """Tell each request of a batch what Celery tells that of a job. ``done`` acks those that were
    not acked before; nothing else knows which they are."""
    requests: list[Any] = []
    token = _named.set(requests)
    try:
        done(None)  # as for a batch that has failed
    finally:
        _named.reset(token)
    for request in reversed(requests):  # each goes to the front of its queue
        request.together = len(requests)
        try:
            request.on_failure(exc_info)
        except Exception:
            logger.exception("Job %s could not be told that its batch was cut short.", request)
