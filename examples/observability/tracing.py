"""OpenTelemetry: a recovered or killed job is a span in the trace of its publish, and is counted.

Call ``watch()`` in the module of your app, after the providers are set: the worker's MainProcess
recovers and kills, and not its pool. A run that ended with its process has no span of its own: the
process would have sent it. This one takes its place in the trace.
"""

from __future__ import annotations

import json
from typing import Any

from opentelemetry import metrics, propagate, trace

from celery_superfetch import DeadJob, job_killed, job_recovered


def watch(tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """The providers: None for the global ones."""
    tracer = trace.get_tracer("celery_superfetch", tracer_provider=tracer_provider)
    meter = metrics.get_meter("celery_superfetch", meter_provider=meter_provider)
    # What this process does, from its start on. All processes together, and what was before, are in
    # Redis: `celery superfetch metrics`.
    recovered = meter.create_counter("superfetch.jobs.recovered", unit="{job}")
    killed = meter.create_counter("superfetch.jobs.killed", unit="{job}")

    def on_recovered(recovery: Any, **_: Any) -> None:
        labels = {"task": recovery.task or "", "queue": recovery.job.queue_list}
        recovered.add(1, labels)
        span(tracer, "recovered", recovery, recovery.job.payload).end()

    def on_killed(job: DeadJob, **_: Any) -> None:
        killed.add(1, {"task": job.task or "", "queue": job.queue_list})
        made = span(tracer, "killed", job, job.payload)
        made.set_status(trace.StatusCode.ERROR, job.reason)
        made.end()

    # Weak ones would be gone with this call.
    job_recovered.connect(on_recovered, weak=False)
    job_killed.connect(on_killed, weak=False)


def span(tracer: trace.Tracer, what: str, job: Any, payload: bytes) -> trace.Span:
    """A span of what became of a job, begun; ``job``: a Recovery or a DeadJob."""
    told = {
        "celery.task_name": job.task,
        "messaging.message.id": job.task_id,
        "superfetch.reason": job.reason,
        "superfetch.strikes": job.strikes,
        "superfetch.recoveries": job.recoveries,
        "superfetch.node": job.node,
    }
    # The headers of a message are never rewritten: they still say where it was published.
    headers = json.loads(payload).get("headers") if job.parsed else None
    return tracer.start_span(
        f"superfetch.{what} {job.task}",
        context=propagate.extract(headers or {}),
        attributes={name: value for name, value in told.items() if value is not None},
    )
