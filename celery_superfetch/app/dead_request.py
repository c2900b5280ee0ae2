"""Rebuilds two things of a dead-lettered job: the exception that its caller gets, and the request
that its task would have seen.

``announcement`` calls both in the run of a failure notification (the *notice*), in a worker's pool.
Nothing is stored here, but decoding the body may kill the process: then the notification is
recovered, and after ``notice.NOTICE_RUNS_MAX`` such deaths its run asks for the request without the
body.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.utils.log import get_logger
from kombu.serialization import prepare_accept_content
from kombu.transport import virtual
from kombu.utils.json import loads

from ..errors import PoisonPill
from ..model.dead_job import DeadJob
from ..model.foreign import loggable, one_line
from ..model.log_text import one_line_each
from ..model.strikes import strike_summary

logger = one_line_each(get_logger(__name__))


def pill_of(job: DeadJob) -> PoisonPill:
    """Make the exception that the caller of a dead-lettered job gets."""
    counted = strike_summary(job.strikes, job.recoveries, job.stops)
    text = (
        f"Job {job.task}[{job.task_id}] was moved to the dead set after {counted}: {job.reason} "
        f"(owner={job.owner}, dead_id={job.id})."
    )
    facts = {name: getattr(job, name) for name in ("reason", "strikes", "recoveries")}
    owners = [str(event["owner"]) for event in job.events]
    times = [event["at"] for event in job.events]
    return PoisonPill(text, {**facts, "owners": owners, "times": times, "dead_id": job.id})


def request_of(app: Celery, job: DeadJob, *, with_body: bool = True) -> Context:
    """Build the request as the task would have seen it, as far as the payload can be read.

    Arguments:
        with_body: decode the body, which may kill the process. Without it the request has no
            arguments, and nothing that follows the job (callbacks, errbacks, chain, chord).
    """
    if job.whole_bytes:  # only the first bytes of its message were kept: they cannot be decoded
        return Context({"id": job.task_id, "task": job.task, "hostname": job.node or job.owner})
    raw = loads(job.payload.decode())
    properties = raw["properties"]
    fields = {
        **(raw.get("headers") or {}),
        "id": job.task_id,
        "task": job.task,
        "delivery_info": properties.get("delivery_info") or {},
        "correlation_id": properties.get("correlation_id"),
        "reply_to": properties.get("reply_to"),
        "properties": properties,
        "hostname": job.node or job.owner,
    }
    args, kwargs, embed = [], {}, {}  # type: tuple[Any, Any, Any]
    try:
        if with_body:
            args, kwargs, embed = _body(app, raw)
    except Exception as error:  # the caller is informed all the same, without its errbacks
        logger.warning(
            "The body of dead job %s[%s] cannot be decoded: its failure is stored, but its "
            "errbacks do not run, and its chord and chain do not learn of it. The traceback "
            "follows; inform the callers that wait for this job.",
            one_line(str(job.task)),
            one_line(str(job.task_id)),
            exc_info=loggable(error),
        )
    return Context({**embed, **fields, "args": args, "kwargs": kwargs})


class _Codecs:
    """The part of a kombu channel that decoding a message needs."""

    codecs, decode_body = virtual.Channel.codecs, virtual.Channel.decode_body


def _body(app: Celery, raw: Any) -> Any:
    """Decode a message's body: args, kwargs and what follows the job."""
    accept = prepare_accept_content(app.conf.accept_content)
    decoded = virtual.Message(raw, _Codecs(), accept=accept).decode()
    if isinstance(decoded, dict):  # protocol 1 has all in the body
        decoded.setdefault("group", decoded.get("taskset"))
        return decoded.pop("args", []), decoded.pop("kwargs", {}), decoded
    args, kwargs, embed = decoded
    return args, kwargs, dict(embed or {})
