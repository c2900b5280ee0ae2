"""``run_job``, which a pool calls to run a job: in a pool process, a thread, a greenlet, or the
worker's loop (solo).

If the process dies, the job is in the private list, recorded as running since its request was
started (``LeasedRequest.start``): it is recovered with a strike, even if ``run_job`` has not begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..app.steps import run
from ..model.permit import clock
from ..model.step import Claim
from .forked_children import ending_forked_children
from .outcomes import TooLate


def run_job(
    deadline: float, claim: Any, tracer: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run a job where the pool runs it, if its deadline has not passed.

    Arguments:
        deadline: by ``clock``, which is the same in all processes of a host.
        claim: the fields of its ``Claim`` (``model.step``).
        tracer: Celery's tracer; its arguments follow.

    Returns:
        the outcome of Celery's tracer; ``TooLate`` if the job was not started.
    """
    if (began := clock()) < deadline:
        with ending_forked_children(args):
            result = run(Claim(*claim), tracer, *args, **kwargs)
        if isinstance(result, tuple) and result[2] is None:  # Celery measures only a success
            return *result[:2], clock() - began
        return result
    return TooLate()
