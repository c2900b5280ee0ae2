"""The strikes of jobs that were given up, as the runner counted them, by the storm's own names."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from celery import Celery

from ..history import read

#: Seconds by which the clock of a strike, which counts whole seconds, may be behind.
ROUNDED = 1.0


def strikes(app: Celery, path: Path) -> Iterator[dict[str, Any]]:
    """The strikes of each job in the dead set: when which worker was held to be lost with it."""
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
                # A later worker may have the same pid.
                before = bisect(starts[owner], (at + ROUNDED, ""))
                worker = starts[owner][before - 1][1] if before else ""
                yield {"job": job, "step": step, "worker": worker, "struck": at}
