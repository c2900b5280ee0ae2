"""The callbacks with which a consumer settles claimed jobs that it cannot run.

``worker/steps.py`` makes an ``Intake`` with functions of ``worker/unreceivable.py`` and gives it to
a worker's channel. ``Channel.deliver`` calls it for each claimed job, in the thread of the worker's
event loop.

A claimed job is in its owner's private list in Redis until it is settled: acked, requeued, parked
or dead-lettered. If the process dies before that, a reaper recovers it from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..owner.in_flight.lease import Lease


def _never(*_: Any) -> bool:
    return False


@dataclass(frozen=True)
class Intake:
    """Callbacks of a channel. Each returns whether the job is out of the channel's hands: the
    channel then delivers it no more.

    The defaults return False, for a consumer without a Celery worker: each of its jobs is
    delivered, and the consumer's errors are raised.
    """

    #: Called with (lease, channel) before a claimed job is decoded. A worker's callback moves a job
    #: that has used up its strikes or stops to the dead set, or to probation.
    intercept: Callable[[Lease, Any], bool] = _never
    #: Called with (message) before a decoded message is delivered. A worker's callback parks a job
    #: whose ETA is later: it then waits in Redis, in no private list.
    park: Callable[[Any], bool] = _never
    #: Called with (message, error) if the consumer raised an error. A worker's callback
    #: dead-letters the job if its message is unreadable.
    refuse: Callable[[Any, Exception], bool] = _never
