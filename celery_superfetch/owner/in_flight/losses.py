"""Jobs that were taken away from this process: never in silence."""

from __future__ import annotations

import contextlib
import logging

from redis.exceptions import RedisError

from ...model.job import Job, digest, parse
from ...signals import LostJob, ownership_lost
from ...store.private_lists import PrivateLists
from ...store.stats import Stats

logger = logging.getLogger(__name__)


def announce(job: Job, lists: PrivateLists) -> None:
    """Say that a job is another's by now: in the log, the counters, and by a signal."""
    envelope = parse(job.payload)
    logger.warning(
        "Job %s[%s] from queue %s is no longer ours (owner %s was taken for dead, or the "
        "job was moved by hand): it may run again elsewhere. Its ack removed nothing of "
        "anybody else's.",
        envelope.task,
        envelope.task_id or digest(job.payload),
        job.queue_list,
        job.owner,
    )
    with contextlib.suppress(RedisError):  # counting is not worth a failure
        Stats(lists.database).count("ownership_lost")
    ownership_lost.send(sender=None, lost=LostJob.of(job, envelope))
