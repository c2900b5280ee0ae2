"""``run_job``, which a pool calls to run a job: in a pool process, a thread, a greenlet, or the
worker's loop (solo). ``pool_adapter.py`` gives it to the pool.

The job is in its owner's private list in Redis, with a start record since ``LeasedRequest.start``.
If its pool process dies, the worker recovers the job, with a strike if the process had accepted it;
if not, the job starts in another process. If the worker dies, the reaper of another worker recovers
the job with a strike, even if ``run_job`` has not begun. A job with early ack (``acks_late`` off)
was acked as it began, and its run is lost, as in stock Celery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..app.forked_children import call_run
from ..app.steps import run
from ..model.start_permit import clock
from ..model.step import Claim
from .outcomes import TooLate


def run_job(
    deadline: float, claim: Any, tracer: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run a job where the pool runs it, if its deadline has not passed.

    Arguments:
        deadline: by ``clock``, which is the same in all processes of a host.
        claim: the fields of its ``Claim`` (``model.step``), by which the messages that the job
            publishes as it ends are published once.
        tracer: Celery's tracer; its arguments follow.

    Returns:
        the outcome of Celery's tracer; ``TooLate`` if the job was not started.
    """
    if (began := clock()) < deadline:
        result = call_run(args, run, Claim(*claim), tracer, *args, **kwargs)
        if isinstance(result, tuple) and result[2] is None:  # Celery measures only a success
            return *result[:2], clock() - began
        return result
    return TooLate()
