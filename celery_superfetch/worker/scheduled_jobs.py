"""Parks a job that is due later: moves it into Redis until its ETA, so that it occupies no place in
a worker. Logs and commands call such a job *scheduled*.

``QoS.deliver`` (``transport/deliveries.py``) calls ``park_if_due_later`` with each decoded message,
in the thread of the worker's event loop. A job that is due soon goes on to Celery, whose timer
starts it.

The move is sent with the loop's next commands. If the worker dies before that, the job is in its
owner's private list in Redis, and the reaper of another worker (or of the next one on this host)
recovers it, without a strike unless its start was recorded (a claim records the starts of as many
jobs as slots are free). The next worker that claims the job parks it.
"""

from __future__ import annotations

from time import gmtime, time
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state

from ..model.humanize import command
from ..model.job import eta_of
from ..model.log_text import one_line_each
from ..owner.owner import Owner
from ..transport.deliveries import delivery_of

logger = one_line_each(get_logger(__name__))

#: An ETA that is further away (s) is likely a mistake: a wrong century, or a wrong unit. (Four days
#: in milliseconds, taken for seconds, are eleven years.)
FAR_ETA_S = 10 * 365 * 86_400


def park_if_due_later(message: Any) -> bool:
    """Park a job that is due so much later that it should wait in Redis and not in this worker;
    return whether it was parked."""
    delivery = delivery_of(message)
    if delivery is None or not (due := _due(message, delivery.owner)):
        return False
    if not delivery.owner.leases.park(delivery.lease, due * 1000):
        return False
    delivery.drop()
    if due - time() > FAR_ETA_S:
        logger.warning(
            "Job %s is scheduled for the year %d, and waits in Redis until then. If that is an "
            "error of its sender, revoke it; `%s jobs --state scheduled` lists such jobs.",
            delivery.job.title,
            gmtime(due).tm_year,
            command(),
        )
    return True


def _due(message: Any, owner: Owner) -> float:
    """Return when a job is due (s since the epoch). 0: at once; also if the job is revoked or
    cannot be read, which Celery then finds."""
    try:
        # In protocol 1 the body has these fields.
        fields = message.headers if "task" in message.headers else message.payload
        if fields.get("id") in state.revoked:
            return 0.0
        eta = fields.get("eta")
        due = 0.0 if eta is None else eta_of(eta)
        return max(due, owner.executor.not_before(fields.get("task"), owner))
    except Exception:  # a body may raise any error in a decoder
        return 0.0
