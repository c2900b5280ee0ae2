"""The announcement that this process has lost the ownership of a job: in the log, in the counters
and by a signal.

``InFlight.announce`` calls ``announce`` for jobs of three kinds: those whose ack found no
claim; those that ran when their owner was declared dead; and those whose recovery by ``Settlement``
found no claim. In a worker the maintenance thread does so, or the thread in which an owner leaves;
in a plain consumer its own thread. By then the claim is gone from the server, or a reaper is about
to move the job. If the process dies before the announcement or in the middle, only the announcement
is missing.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from redis.exceptions import RedisError

from ...model.job import Job, parse
from ...model.log_text import one_line_each
from ...signals import LostJob, ownership_lost
from ...store.stats import Stats

logger = one_line_each(logging.getLogger(__name__))


def announce(job: Job, stats: Stats) -> None:
    """Log that ownership of a job was lost, call the receivers of the signal, and count it."""
    message = parse(job.payload)
    logger.warning(
        "Lost ownership of job %s (queue=%s, owner=%s): Redis no longer has its claim, so its "
        "ack has no effect and it may run twice. Check its effects. Cause: the worker was "
        "declared dead, Redis lost keys or older data was restored, or the job was moved by hand.",
        job.title,
        job.queue_list,
        job.owner,
    )
    # The receivers come before the count. The count sends a command, and a greenlet may be killed
    # while it waits for the reply.
    ownership_lost.send(sender=None, lost=LostJob(*job[:3], message.task, message.task_id))
    with suppress(RedisError):  # counting is not worth a failure
        stats.record_ownership_lost(job)
