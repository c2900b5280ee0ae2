"""The callbacks with which a consumer settles claimed jobs that it cannot run.

``worker/bootsteps.py`` makes an ``Intake`` of three functions (in ``worker/job_limits.py``,
``scheduled_jobs.py`` and ``unreadable_jobs.py``) and gives it to a worker's channel.
``QoS.deliver`` calls it for each claimed job, in the thread of the worker's event loop.

A claimed job is in its owner's private list in Redis until it is settled: acked, requeued, parked
or dead-lettered. If the process dies before that, the reaper of another worker recovers it from
there.
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
    """Callbacks of a channel. Each returns True if it has settled the job: the channel then does
    not deliver it.

    The defaults return False, for a consumer without a Celery worker: each of its jobs is
    delivered, and the consumer's errors are raised.
    """

    #: Called with (lease, channel) before a claimed job is decoded. A worker's callback moves a job
    #: that has used up its strikes or stops to the dead set, or to probation.
    apply_limits: Callable[[Lease, Any], bool] = _never
    #: Called with (message) before a decoded message is delivered. A worker's callback parks a job
    #: whose ETA is later: the job leaves the private list, and waits in Redis in the parked set.
    park_if_due_later: Callable[[Any], bool] = _never
    #: Called with (message, error) after the consumer raised an error. A worker's callback
    #: dead-letters the job if its message is unreadable, and parks it if a server has refused a
    #: command meanwhile. False: the error is raised.
    reject_unreadable: Callable[[Any, Exception], bool] = _never
