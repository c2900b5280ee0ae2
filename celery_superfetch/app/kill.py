"""`jobs kill`: a worker is asked to move jobs that it has to the dead set."""

from __future__ import annotations

from collections.abc import Sequence

from celery import Celery

from ..model.facts import Facts

COMMAND = "superfetch_kill"  # the control command by which it is asked
TIMEOUT = 5.0  # seconds that a worker has for its answer; half of them to begin

SILENT = (
    "its worker {node} did not answer within {seconds:g} s: its loop is busy (a solo worker's with "
    "each job), its remote control is off, or it cannot be reached"
)


def kill(
    app: Celery, facts: Facts, called: int, now: int, names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Have a worker kill some of its jobs, by their claim ids. ``called``: how many workers have
    its name; ``now``: the server's clock (ms). Returns claim id -> ``dead_id``, or ``error``."""
    node = facts.node
    replies = app.control.broadcast(
        COMMAND,
        # A worker that is busy hears of it later, when nobody waits for its answer any more.
        arguments={"owner": facts.owner, "jobs": [*names], "until": now + TIMEOUT * 500},
        destination=[node],
        reply=True,
        timeout=TIMEOUT,
        limit=called,  # each of them answers, and one alone has the jobs
    )
    answers = [reply[node] for reply in replies or () if node in reply]
    for answer in answers:
        if "jobs" in answer:
            return dict(answer["jobs"])
    trouble = answers[0].get("error") if answers else SILENT.format(node=node, seconds=TIMEOUT)
    return {name: {"error": str(trouble)} for name in names}
