"""Publishes the steps of a job, each once, although the job may run twice. ``Channel._put`` calls
this, in the process that runs the job, in the thread of its task.

A *step* is a message that a job publishes because it ends: its retry, the task that replaces it, or
the next link of its chain. The claim has a note of the steps that were published. ``step.lua``
writes the note and pushes the message at once, so that a death before or after it loses no step and
sends none twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..model.log_text import one_line_each
from ..model.step import Claim, Fenced, Step

logger = one_line_each(logging.getLogger(__name__))


def is_published_as(step: Step, message: Any, channel: Any) -> bool:
    """Return whether this message is the step: neither one that a receiver of a signal sends while
    the step is published, nor one to another server than that of the claim, whose steps note cannot
    change in one script with another server's queue."""
    is_same_task = step.task_id == message["properties"].get("correlation_id")
    return is_same_task and step.run.claim.place == channel.place


def publish_step(step: Step, push: Callable[[str, Claim, bool], int]) -> None:
    """Publish a step, unless an earlier run, or an earlier try of this one, has.

    A retry, or what replaces the job, is held (``Run.held``) until the run's end, or its next
    message: only then it is known whether the run ends with it. If it were noted as the job's end
    at once, a task that catches ``Retry``, continues and is killed would never publish the rest. If
    the process dies while the run holds it, it was not published: the next run of the job sends it.

    Arguments:
        push: runs ``step.lua`` (earlier steps note, claim, whether the job is over) and returns its
            reply.

    Raises:
        Fenced: the claim is over, and the job belongs to another owner.
    """
    run = step.run

    def publish(is_over: bool) -> None:
        done = push(run.earlier, run.claim, is_over)
        if done < 0:
            raise Fenced(
                f"Job {run.title} is no longer ours, and may run elsewhere by now: this run hands "
                f"on nothing (as its next step, {step.task}[{step.task_id}]), and has no result"
            )
        if not done:
            logger.info(
                "Step %s[%s] of job %s was published before, and is not published again.",
                step.task,
                step.task_id,
                run.title,
            )

    if step.is_itself:
        run.held.append(publish)
    else:
        publish(False)
