"""The request of a killed job: what its task would have seen, read from the payload."""

from __future__ import annotations

import base64
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.utils.log import get_logger
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.utils.json import loads

from ..model.dead_job import DeadJob

logger = get_logger(__name__)


def request_of(app: Celery, job: DeadJob, *, with_body: bool = True) -> Context:
    """The request as the worker would have seen it, as far as the payload can be read.

    Arguments:
        with_body: False leaves the body alone: what decodes it may not survive it.
    """
    raw = loads(job.payload.decode())
    properties = raw["properties"]
    headers = dict(raw.get("headers") or {})
    fields = {
        **headers,
        "id": job.task_id,
        "task": job.task,
        "delivery_info": properties.get("delivery_info") or {},
        "correlation_id": properties.get("correlation_id"),
        "reply_to": properties.get("reply_to"),
        "properties": properties,
        "hostname": job.node or job.owner,
    }
    called: tuple[Any, Any, Any] = [], {}, {}
    try:
        if with_body:
            called = _body(app, raw, properties, headers)
    except Exception:  # the caller is told all the same; only callbacks cannot be run
        logger.warning(
            "The body of killed job %s[%s] cannot be decoded: its caller is told, but its "
            "errbacks and chord are unknown.",
            job.task,
            job.task_id,
            exc_info=True,
        )
    args, kwargs, embed = called
    return Context({**embed, **fields, "args": args, "kwargs": kwargs})


def _body(app: Celery, raw: Any, properties: Any, headers: Any) -> tuple[Any, Any, Any]:
    body = raw.get("body")
    if properties.get("body_encoding") == "base64":
        body = base64.b64decode(body)
    message = Message(
        body=body,
        content_type=raw.get("content-type"),
        content_encoding=raw.get("content-encoding"),
        headers=headers,
        properties=properties,
        postencode="utf-8",
        accept=prepare_accept_content(app.conf.accept_content),
    )
    decoded = message.decode()
    if isinstance(decoded, dict):  # protocol 1 has all in the body
        decoded.setdefault("group", decoded.get("taskset"))
        return decoded.pop("args", []), decoded.pop("kwargs", {}), decoded
    args, kwargs, embed = decoded
    return args, kwargs, embed or {}
