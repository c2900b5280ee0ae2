"""Read the strikes of jobs that were given up, as the package counted them, and name jobs and
workers as the history does.

The storm calls it at its end, and writes each strike to the history. The checker compares them with
the harms.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from celery import Celery

from ..history import read

#: Seconds by which the time of a strike may be too early: it may be rounded to whole seconds.
ROUNDED = 1.0


def strikes(app: Celery, path: Path) -> Iterator[dict[str, Any]]:
    """Yield each strike of each job in the dead set: the job, its step, the worker that was
    declared lost while it ran, and when.

    Arguments:
        app: the app whose dead set is read.
        path: the history, which says which worker had which pid, and when.
    """
    from celery_superfetch import DeadSet

    starts: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for line in sorted(read(path), key=lambda line: float(line["at"])):
        if line["event"] == "main":
            starts[f"{line['host']}|{line['pid']}"].append((line["at"], line["worker"]))
    with DeadSet(app) as dead_set:
        for dead in dead_set:
            job, _, step = (dead.task_id or "").partition(":")
            for entry in dead.events:
                if not entry["strike"]:
                    continue
                owner, at = str(entry["owner"]).rpartition("|")[0], float(entry["at"])
                # Several workers may have had the same pid, one after the other. The strike is of
                # the last one that had started by then.
                before = bisect(starts[owner], (at + ROUNDED, ""))
                worker = starts[owner][before - 1][1] if before else ""
                yield {"job": job, "step": step, "worker": worker, "struck": at}
