"""The callbacks by which a consumer settles claimed jobs instead of running them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..model.job import Claimed


def _never(*_: Any) -> bool:
    return False


@dataclass(frozen=True)
class Intake:
    """What a channel calls for each claimed job. A consumer without a Celery worker has no
    callbacks: each of its jobs is delivered, and the consumer's errors are raised.

    Each callback returns whether it has settled the job, or left it to Redis; the channel does
    nothing more with that job. If the process dies before that, the job is in the private list.
    """

    #: Before a claimed job is decoded: (claimed, channel).
    intercept: Callable[[Claimed, Any], bool] = _never
    #: Before a decoded message is delivered: (message).
    park: Callable[[Any], bool] = _never
    #: When the consumer raised an error instead of taking the message: (message, error).
    refuse: Callable[[Any, Exception], bool] = _never
