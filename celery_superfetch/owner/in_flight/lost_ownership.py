"""The announcement that this process has lost the ownership of a job: in the log, in the counters
and by a signal.

``PendingLeases`` calls it when the server had nothing of some acks, ``InFlight`` when it learns
that an owner was declared dead: in a worker's main process, in the thread that sent the acks or
makes the owner's deferred calls. The server no longer has the claim by then: the job was recovered,
or its keys are gone. If the process dies in the middle, only the announcement is missing.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from redis.exceptions import RedisError

from ...model.job import Job, parse
from ...model.log_text import one_line_each
from ...signals import LostJob, ownership_lost
from ...store.history import History

logger = one_line_each(logging.getLogger(__name__))


def announce(job: Job, history: History) -> None:
    """Log and count that ownership of a job was lost, and call the receivers of the signal."""
    message = parse(job.payload)
    logger.warning(
        "Lost ownership of job %s (queue=%s, owner=%s): the server no longer has its claim, "
        "and it may run again elsewhere. The owner was declared dead, its keys were flushed, "
        "deleted or evicted, the server restarted empty or with older data, or the job was "
        "moved by hand. The ack has no effect.",
        job.title,
        job.queue_list,
        job.owner,
    )
    with suppress(RedisError):  # counting is not worth a failure
        history.lost(job)
    ownership_lost.send(sender=None, lost=LostJob(*job[:3], message.task, message.task_id))
