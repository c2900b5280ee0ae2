"""The dead jobs that an operator names by their ids, for `dead retry` and `dead delete`. It only
reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from .session import Session, complain


@dataclass
class NamedJobs:
    """The jobs that an operator named by their ids."""

    jobs: dict[str, str]  # id in the dead set -> a title
    abbreviated: set[str]  # ids in the dead set of which only the beginning was typed
    errors: list[dict[str, Any]]

    @classmethod
    def of(cls, session: Session, ids: Sequence[str], yes: bool) -> NamedJobs:
        """Find the jobs. With ``yes`` the beginning of an id finds none: it may be the beginning of
        another job's id tomorrow, and no person sees which job it is."""
        from ..errors import JobNotFound
        from ..model.arguments import task_title

        named = cls({}, set(), [])
        for id in dict.fromkeys(ids):
            try:
                job = session.dead_set.get(id)
            except JobNotFound as exc:
                named.errors.append({"id": id, "error": str(exc)})
                continue
            title = f"{task_title(job.task)}[{job.task_id}]"
            if id in (job.id, job.task_id):
                named.jobs[job.id] = title
            elif yes:
                text = f"only the beginning of id {job.id}, {title}: --yes needs whole ids"
                named.errors.append({"id": id, "error": text})
            else:
                named.jobs[job.id] = title
                named.abbreviated.add(job.id)
        return named

    def confirm(self, verb: str, yes: bool, always: bool = False) -> None:
        """Show the jobs and ask, if an id was abbreviated, or ``always``."""
        from ..model.arguments import printable
        from ..model.humanize import number

        if not self.jobs or yes or not (always or self.abbreviated):
            return
        for id, title in self.jobs.items():
            if always or id in self.abbreviated:
                complain(printable(f"{id} {title}"))
        end = " for good" if verb == "Delete" else ""
        click.confirm(f"{verb} {number(len(self.jobs), 'job')}{end}?", abort=True, err=True)
