"""Reads the workers of an app's database, and one worker with its jobs; stops one by Celery's own
control command.

`superfetch workers` and the page call it. It stores nothing. A stop is one message to one worker:
if this process dies before it is sent, nothing has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery import Celery

from ..errors import SuperfetchError
from ..inspector import Inspector
from ..model.dead_job import utc
from ..model.humanize import command
from ..model.owner_record import HUNG, SILENT, STOPPING
from .dead_worker import death_of
from .jobs import BY_RUN, JobsSnapshot, Which
from .overview import by_need, owner_rows

#: Seconds in which a worker answers the ping that precedes a stop.
PING_REPLY_S = 1.0

#: Jobs of one worker that are shown.
WORKER_JOBS_SHOWN = 100

STOP_EFFECT = (
    "It claims no more jobs, requeues those that have not begun, finishes the running ones, and "
    "ends. If a supervisor watches it (systemd, Kubernetes, Docker), that may start it again."
)


class CannotStop(SuperfetchError):
    """A worker cannot be stopped by a control command."""


def workers_of(inspector: Inspector) -> dict[str, Any]:
    """Return all workers, those in need first."""
    now = inspector.database.server_time()
    rows = [row for row, _ in owner_rows(inspector, inspector.judged(), now)]
    queue_of = inspector.database.queue_of
    return {
        "server_time": utc(now / 1000),
        "workers": [{**row, "queues": _queues(row, queue_of)} for row in by_need(rows)],
    }


def one_worker(inspector: Inspector, owner: str) -> dict[str, Any]:
    """Return one worker, by the name of its owner, and its jobs, the longest run first. If it is
    not registered, ``worker`` is None, and ``death`` says how it ended, if that is recorded."""
    document = workers_of(inspector)
    worker = next((row for row in document["workers"] if row["owner"] == owner), None)
    jobs = JobsSnapshot(inspector, Which(owner=owner), BY_RUN).first(WORKER_JOBS_SHOWN)
    now = inspector.database.server_time()
    return {
        "server_time": document["server_time"],
        "worker": worker,
        "death": None if worker else death_of(inspector, owner, now),
        "jobs": jobs["jobs"],
        "more": jobs["more"],
    }


def owner_named(inspector: Inspector, name: str) -> str:
    """Return the owner of a node name, of a worker that is registered or died within a week; a name
    that is no node name is taken for an owner's."""
    records = [(record.node, record.owner) for record, _, _ in inspector.judged()]
    deaths = [(death["node"], death["owner"]) for death in inspector.stats.deaths()]
    return next((owner for node, owner in [*records, *deaths] if node == name), name)


def why_not_stopped(worker: Mapping[str, Any]) -> str | None:
    """Return why a worker cannot be stopped by a control command; None: it can."""
    process = f"pid {worker['pid']} on host {worker['host']}"
    if not worker["node"]:
        return "it has no node name: it is a plain consumer, which gets no commands of Celery's"
    if worker["verdict"] == "dead" and worker["state"] != HUNG:
        return "it is dead: a reap pass recovers its jobs"
    if worker["state"] == HUNG:
        return f"it is hung: its event loop obeys no command. Kill it: {process}"
    if worker["state"] == SILENT:
        return f"it missed its heartbeats, and may obey no command. Look at {process}"
    if worker["state"] == STOPPING:
        return "it is stopping already"
    return None


def _is_ending(worker: Mapping[str, Any]) -> bool:
    """Return whether a worker ends without a command: it is dead, or stopping already."""
    is_dead = worker["verdict"] == "dead" and worker["state"] != HUNG
    return is_dead or worker["state"] == STOPPING


def stop(app: Celery, workers: Sequence[Mapping[str, Any]], node: str) -> Mapping[str, Any]:
    """Tell the worker of a node name to stop, once it has answered a ping; return its row.

    Raises:
        CannotStop: no worker, or more than one, has the name; or it cannot obey.
    """
    found = [worker for worker in workers if worker["node"] == node]
    able = [worker for worker in found if why_not_stopped(worker) is None]
    if not found:
        raise CannotStop(f"no worker has the node name {node!r}: `{command()} workers` lists them")
    if not able:
        reasons = "; ".join(str(why_not_stopped(worker)) for worker in found)
        raise CannotStop(f"worker {node} was not told to stop: {reasons}")
    worker = able[0]
    # A worker that is silent or hung now would obey the command when it goes on.
    others = [other for other in found if other is not worker and not _is_ending(other)]
    if others:
        unable = [f" Of the others: {why}." for o in others if (why := why_not_stopped(o))]
        raise CannotStop(
            f"{1 + len(others)} workers have the node name {node}, and a command would stop them "
            "all. Give each a name of its own (celery worker -n), and stop this one with SIGTERM: "
            f"pid {worker['pid']} on host {worker['host']}.{''.join(unable)}"
        )
    if not app.control.ping([node], timeout=PING_REPLY_S):
        raise CannotStop(
            f"worker {node} was not told to stop: it did not answer a ping within "
            f"{PING_REPLY_S:g} s. A worker of the solo pool answers between two jobs. Try again, "
            f"or send SIGTERM to pid {worker['pid']} on host {worker['host']}"
        )
    app.control.shutdown([node])
    return worker


def pool_of(row: Mapping[str, Any]) -> str | None:
    """Return the kind of a worker's pool and its number of slots, as far as its record has them."""
    return f"{row['pool_name']}, {row['slots']}" if row["pool_name"] else None


def memory_of(row: Mapping[str, Any]) -> str | None:
    """Return the memory of a worker's processes, in MB; None where its record does not have it."""
    return f"{row['memory'] // 2**20} MB" if row["memory"] else None


def _queues(row: Mapping[str, Any], queue_of: Callable[[str], str]) -> list[str]:
    """Return the queues of an owner, without those whose consumers it cancelled."""
    lists = {*row["queues"]} - {*row["unconsumed"]}
    return sorted({*map(queue_of, lists)})
