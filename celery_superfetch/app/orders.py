"""Orders to a worker, by Celery's remote control, about jobs that it has in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery

from ..store.database import Database

COMMAND = "superfetch_jobs"  # the control command that carries them out
TIMEOUT = 5.0  # seconds that a worker has for its answer
BEGIN = 3.0  # seconds that it has to begin with a job; what is later it leaves undone, and says so

SILENT = (
    "its worker {node} did not answer within {seconds:g} s, and nothing was done: its loop is busy "
    "(a solo worker's with each job), its remote control is off, or it cannot be reached"
)
OTHER = (
    "its worker {node} runs {version} of celery_superfetch, which does not know this order, and "
    "nothing was done: restart it with this one"
)


def give(
    app: Celery,
    database: Database,
    worker: Mapping[str, Any],
    what: str,
    jobs: Sequence[str],
    **how: Any,
) -> dict[str, dict[str, Any]]:
    """Have a ``worker`` ``release`` or ``kill`` jobs of its own, by their digests;
    ``terminate=True`` also kills what runs. It is told by its owner, node and version, and by how
    many are ``called`` so: of two apps on one host, say. Returns digest -> ``{"ok": what became
    of it}`` or ``{"error": why nothing did}``."""
    until = database.server_time() + int(BEGIN * 1000)
    order = {"owner": worker["owner"], "until": until, "what": what, "jobs": [*jobs], **how}
    node = worker["node"]
    replies = app.control.broadcast(
        COMMAND,
        arguments=order,
        destination=[node],
        reply=True,
        timeout=TIMEOUT,
        limit=worker["called"],  # each of them answers, and one alone has the jobs
    )
    answers = [reply[node] for reply in replies or () if node in reply]
    answers.sort(key=lambda answer: "jobs" not in answer)
    if not answers:
        why = SILENT.format(node=node, seconds=TIMEOUT)
    elif done := answers[0].get("jobs"):
        return dict(done)
    else:
        why = str(answers[0].get("error"))
        if COMMAND in why:  # "no such key"
            why = OTHER.format(node=node, version=worker["version"] or "an earlier version")
    return {key: {"error": why} for key in jobs}
