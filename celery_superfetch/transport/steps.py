"""Publishes the steps of a job: each once, and its last word only when the run has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..model.step import Claim, Fenced, Step

logger = logging.getLogger(__name__)


def is_published_as(step: Step, message: Any, channel: Any) -> bool:
    """Whether a channel publishes a step by this message: not what a receiver of a signal sends
    meanwhile, and nothing to another server than that of the claim."""
    same = step.task_id == message["properties"].get("correlation_id")
    return same and step.run.claim.place == channel.place


def publish_step(step: Step, push: Callable[[str, Claim, bool], int]) -> None:
    """Publish a step, unless an earlier run has; Fenced: the claim is over.

    ``push`` runs the script. A retry, or what replaces the job, is held until the run's end, or its
    next message: only then it is known that the run has ended with it. If it were noted as the end
    before, a task that catches ``Retry`` and is killed would never publish the rest.
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
                "Step %s[%s] of job %s was published by an earlier run, and is not published "
                "again.",
                step.task,
                step.task_id,
                run.title,
            )

    if step.is_itself:
        run.held.append(publish)
    else:
        publish(False)
