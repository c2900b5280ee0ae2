"""What a job was called with, for people to look at: never unpickled, never whole."""

from __future__ import annotations

import base64
import json
from typing import Any

from .job import parse

#: Characters shown of each; Celery itself cuts its own views at as many.
MOST = 1024

#: Bytes of a body that are decoded just to be shown.
MOST_BODY = 1024 * 1024


def arguments(payload: bytes) -> tuple[str, str]:
    """Positional and keyword arguments of a job as text, cut where they are long.

    The sender's own view (``argsrepr``, ``kwargsrepr``: it may hide secrets) comes first. Else
    the body is read if that is safe, which is to say JSON and nothing else.
    """
    message = parse(payload).message
    if message is None:
        return "", ""
    headers = message.get("headers") or {}
    views = headers.get("argsrepr"), headers.get("kwargsrepr")
    if all(isinstance(view, str) for view in views):
        return _cut(str(views[0])), _cut(str(views[1]))
    try:
        args, kwargs = _decoded(message, headers)
    except _NotShown as exc:
        return (f"({exc})",) * 2
    except (ValueError, TypeError, KeyError, RecursionError):
        return ("(not shown: the body cannot be decoded)",) * 2
    return _cut(repr(args)), _cut(repr(kwargs))


class _NotShown(Exception):
    """Why not."""


def _decoded(message: dict[str, Any], headers: dict[str, Any]) -> tuple[Any, Any]:
    kind = message.get("content-type")
    if kind != "application/json":
        raise _NotShown(f"not shown: {kind}")
    if headers.get("compression"):
        raise _NotShown(f"not shown: compressed, {headers['compression']}")
    body = message["body"]
    if len(body) > MOST_BODY:
        raise _NotShown(f"not shown: {len(body)} characters")
    if message["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    decoded = json.loads(body)
    if isinstance(decoded, dict):  # protocol 1
        return decoded.get("args", []), decoded.get("kwargs", {})
    return decoded[0], decoded[1]


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[: MOST - 3]}..."
