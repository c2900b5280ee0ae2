"""Sentry: a killed job is one event, and the kills of a task are one issue.

Call ``watch(dsn=...)`` in the module of your app, so that the worker's MainProcess has it: that is
who kills. Without this file a kill is an event as well, by the line that the worker logs. But then
all tasks share one issue, and each pool process that died under the job is two events beside it.
"""

from __future__ import annotations

from typing import Any

import sentry_sdk
from celery import Task
from celery.exceptions import WorkerLostError
from celery.signals import task_failure
from sentry_sdk.integrations.celery import CeleryIntegration

from celery_superfetch import DeadJob, job_killed

#: Logger -> how its lines begin that tell of a pool process that died, or of a kill. What is told
#: below has the task's name; what is not told there was a strike, and a strike is a warning.
TOLD = {
    "multiprocessing": "Process ",
    "celery.worker.request": "Task handler raised error: WorkerLostError",
    "celery_superfetch.reaper.recovery": "Job ",
}


def watch(**options: Any) -> None:
    """``options``: those of ``sentry_sdk.init``."""
    sentry_sdk.init(
        **{"integrations": [CeleryIntegration()], "before_send": without_twins, **options}
    )
    job_killed.connect(report_kill)
    task_failure.connect(report_loss)


def report_kill(job: DeadJob, **_: Any) -> None:
    """A job that reached its last strike. Sentry groups by the fingerprint, and so by the task."""
    if job.task is None:
        return  # no message of Celery's; the line that says so is an event already
    # Without its arguments: `celery superfetch dead show` has them, for who may see them.
    told = {
        "dead_id": job.id,
        "strikes": job.strikes,
        "recoveries": job.recoveries,
        "history": [f"{one['reason']} ({one['owner']})" for one in job.history],
    }
    capture("killed", job.task, job.task_id, job.reason, told)


def report_loss(sender: Task, task_id: str, exception: BaseException, **_: Any) -> None:
    """A job that was acked before it ran (``acks_late=False``), and died with its pool process."""
    if isinstance(exception, WorkerLostError):
        capture("lost", sender.name, task_id, str(exception), {})


def capture(what: str, task: str, task_id: str | None, why: str, told: dict[str, Any]) -> None:
    event = {
        "level": "error",
        "message": f"{task} was {what}: {why}",
        "fingerprint": [f"superfetch-{what}", task],
        "transaction": task,
        "contexts": {"superfetch": told},
    }

    def name_the_job(event: Any, hint: Any) -> Any:
        """Replace what the integration says of the job that runs here: the failure notification."""
        event.setdefault("tags", {})["celery_task_id"] = task_id
        event.get("extra", {}).pop("celery-job", None)
        return event

    with sentry_sdk.new_scope() as scope:
        scope.add_event_processor(name_the_job)  # it runs after those of the integration
        sentry_sdk.capture_event(event)


def without_twins(event: Any, hint: Any) -> Any:
    """None for a line that would be a further event of the same job; a breadcrumb it stays."""
    record = hint.get("log_record")
    begins = TOLD.get(record.name) if record is not None else None
    return None if begins and record.getMessage().startswith(begins) else event
