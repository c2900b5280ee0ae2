"""Publishes the steps of a job, each once, although the job may run twice. ``Channel._put`` calls
this, in the process that runs the job, in the thread of its task.

A *step* is a message that a job publishes because it ends: its retry, the task that replaces it, or
the next link of its chain. The *steps note*, in the job's claim on the server, names the steps that
were published. ``step.lua`` writes the note and pushes the message in one go. If the process dies
before it, a reaper recovers the job, and its next run publishes the step; if it dies after it, the
next run finds the note and does not publish the step again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import NoPermissionError

from ..model.log_text import one_line_each
from ..model.step import Claim, Fenced, Step
from ..store.redis.server import warn_once

logger = one_line_each(logging.getLogger(__name__))


def is_published_as(step: Step, message: Any, channel: Any) -> bool:
    """Return whether this message is the step, and its note can be written together with it.

    False for another message that a receiver of a signal sends while the step is published. The
    header ``id`` has a message's task id; a user may have set a correlation id of their own.
    Messages of protocol 1 have no such header, and only the correlation id.

    False also for a message to another database than that of the claim: one script cannot push to
    a queue there and change the claim's steps note here.
    """
    correlation_id = message["properties"].get("correlation_id")
    is_same_task = step.task_id == message["headers"].get("id", correlation_id)
    return is_same_task and has_claim(step.run.claim, channel)


def has_claim(claim: Claim, channel: Any) -> bool:
    """Return whether a channel leads to the database of a claim. ``broker_read_url`` and
    ``broker_write_url`` may name one database in two ways, with two hosts or two users: if their
    names differ, that database is asked."""
    if claim.database == channel.database_name:
        return True
    from ..store.private_lists import PrivateLists

    try:
        return PrivateLists(channel.database).can_publish_steps_of(claim)
    except NoPermissionError as exc:
        warn_once(
            "After a crash the messages that a job publishes as it ends may be published twice: "
            "the connection by which it publishes has another host or user than its worker's, and "
            f"Redis forbids what has to be known or done there ({exc}). Name the same host and "
            "user in broker_read_url and broker_write_url."
        )
        return False


def publish_step(step: Step, push: Callable[[str, Claim, bool], int]) -> None:
    """Publish a step, unless an earlier run of the job, or an earlier try of this run, has
    published it.

    A retry, or the task that replaces the job, is held (``Run.held``) until the run ends or
    publishes another message: only then it is known whether the run ends with it. If it were noted
    as the job's end at once, a task that catches ``Retry``, continues and is killed would never
    publish its other messages. If the process dies while the run holds the step, the step was not
    published, and the next run of the job publishes it.

    Arguments:
        push: runs ``step.lua`` with the earlier steps note, the claim, and whether the job is over
            after this step. It returns a negative number if the claim is gone, 0 if the step was
            published before, and a positive number if it was published now.

    Raises:
        Fenced: the claim is gone, since the job belongs to another owner by now. The run ends.
    """
    run = step.run

    def publish(is_over: bool) -> None:
        done = push(run.earlier, run.claim, is_over)
        if done < 0:
            raise Fenced(
                f"Lost ownership of job {run.title}, which may run elsewhere: this run sends no "
                f"further message (not sent: {step.task}[{step.task_id}]) and stores no further "
                "result. Check the job's effects"
            )
        if not done:
            logger.info(
                "Task %s[%s], which follows job %s, was published by an earlier run of that job, "
                "and is not published again.",
                step.task,
                step.task_id,
                run.title,
            )

    if step.is_successor:
        run.held.append(publish)
    else:
        publish(False)
