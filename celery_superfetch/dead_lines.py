"""The dead set as JSON lines: out to a file, and back in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from .dead_job import DeadFilter, DeadJob, dump_line, load_line
from .dead_set import ALL, BATCH, JUNK_LIMIT, DeadSet


@dataclass
class Imported:
    """What became of the lines of a file."""

    imported: int = 0
    #: Jobs that the dead set had already; they stay as they are.
    present: int = 0
    #: Number of the line, from 1 -> why it was not taken. Nothing of it is in the dead set.
    refused: dict[int, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        refused = [{"line": line, "error": error} for line, error in self.refused.items()]
        return {**asdict(self), "refused": refused}


def export_lines(dead_set: DeadSet, which: DeadFilter = ALL) -> Iterator[str]:
    """A line for each job that is meant, the oldest first; nothing is changed."""
    jobs = dead_set.find(which, oldest_first=True)
    while batch := list(islice(jobs, BATCH)):
        for job, told in zip(batch, dead_set.told(batch), strict=True):
            yield dump_line(job, told)


def import_lines(dead_set: DeadSet, lines: Iterable[str | bytes]) -> Imported:
    """Put exported jobs in, as they were.

    A line that is refused holds up none of the others. Nobody is dropped for a newcomer, and
    none is taken that the next pass would drop for its age: what is refused is in the file
    still. A second import of the same file changes nothing.

    Raises:
        redis.exceptions.RedisError: the server could not be asked; import the file again.
    """
    done = Imported()
    limit = dead_set.config.dead_ttl
    seconds, _ = dead_set.client.time()
    numbered = enumerate(lines, 1)
    while batch := list(islice(numbered, BATCH)):
        jobs: list[tuple[int, DeadJob, bool]] = []
        for number, line in batch:
            if not line.strip():
                continue
            try:
                job, announced = load_line(line)
            except ValueError as exc:
                done.refused[number] = str(exc)
                continue
            age = int(seconds) - job.died_at / 1000
            if age >= limit:
                done.refused[number] = f"died {age:.0f} s ago, and dead_ttl is {limit:.0f} s"
            elif age < -86400:
                done.refused[number] = "its time of death ('died_at', ms) is in the future"
            else:
                jobs.append((number, job, announced))
        _import(dead_set, jobs, done)
    return done


def _import(dead_set: DeadSet, jobs: list[tuple[int, DeadJob, bool]], done: Imported) -> None:
    calls = [dead_set.import_(job, announced) for _, job, announced in jobs]
    for (number, _, _), reply in zip(jobs, dead_set.scripts.run_all(calls), strict=True):
        if reply == b"ok":
            done.imported += 1
        elif reply == b"present":
            done.present += 1
        else:
            done.refused[number] = (
                f"the dead set is full (dead_limit {dead_set.config.dead_limit}, of these "
                f"{JUNK_LIMIT} unparseable): raise dead_limit, or retry or delete some"
            )
