"""The page's readings of the dead set: a page of jobs, one job, and those that a change selects.

``PageCache`` makes a ``DeadReader``, and caches the answers. It only reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from celery import Celery

from ... import DeadSet
from ...errors import JobNotFound
from ...inspector import Inspector
from ...model.dead_job import FULL_ID, DeadFilter, DeadJob, utc
from ..bulk import first_that_fit, not_whole
from .busy import CHANGE_RUNS, Busy
from .hiding import Hiding, parameters_of

T = TypeVar("T")
Question = Callable[[Inspector], T]

#: Jobs on a page of the dead set.
DEAD_PER_PAGE = 50

#: Jobs that a search reads before it shows its result so far.
SEARCH_READS = 1000


class DeadReader:
    """The dead set as the page reads it, without the secrets of its jobs.

    Arguments:
        cached: returns the cached answer of that name, or asks the question.
        ask_server: asks a question, and caches nothing.
    """

    def __init__(
        self,
        app: Celery,
        cached: Callable[[Hashable, Question[dict[str, Any]]], dict[str, Any]],
        ask_server: Callable[[Question[Any]], Any],
        hiding: Hiding,
    ) -> None:
        self._app, self._cached, self._ask_server = app, cached, ask_server
        self._hiding = hiding
        #: Held by the thread that reads all dead jobs to change some.
        self._change = threading.Lock()

    def page(self, first: int, asked: dict[str, str]) -> dict[str, Any]:
        """Return a page of the dead jobs that meet the conditions ``asked``, starting with the
        ``first`` newest. It reads ``SEARCH_READS`` jobs; the next search starts at ``next``."""
        which = DeadFilter(**_patterns(asked))

        def search(dead: DeadSet) -> dict[str, Any]:
            size, at, jobs = len(dead), first, list[DeadJob]()
            while at < min(size, first + SEARCH_READS) and len(jobs) < DEAD_PER_PAGE:
                some = (
                    job
                    for job in dead.page(at, DEAD_PER_PAGE)
                    if which.takes(job, dead.database.queue_of(job.queue_list))
                )
                jobs += self._shown_by(some, asked)
                at += DEAD_PER_PAGE
            shown, now = [*map(self.hidden, jobs)], utc(dead.database.server_time() / 1000)
            return {"jobs": shown, "size": size, "next": at if at < size else None, "now": now}

        return self._cached(("dead", first, *sorted(asked.items())), self._of_dead_set(search))

    def select(self, asked: dict[str, str]) -> tuple[list[str], bool]:
        """Return the ids of the first dead jobs that meet the conditions, the oldest first, and
        whether there are more than one action may have. Raises Busy."""

        def find(dead: DeadSet) -> tuple[list[str], bool]:
            if not asked:
                return first_that_fit(dead.ids())
            jobs = dead.find(oldest_first=True, **_patterns(asked))
            return first_that_fit(job.id for job in self._shown_by(jobs, asked))

        with self._one_change():
            return self.use(find)

    def single(self, id: str) -> dict[str, Any]:
        """Return one job by its whole id, and the time ``now``; raises JobNotFound."""
        if not FULL_ID.fullmatch(id):
            raise JobNotFound(not_whole(id))

        def search(dead: DeadSet) -> dict[str, Any]:
            now = utc(dead.database.server_time() / 1000)
            try:
                return {**self.hidden(dead.get(id)), "now": now}
            except JobNotFound as exc:  # this answer is cached, too
                return {"missing": str(exc)}

        job = self._cached(("dead job", id), self._of_dead_set(search))
        if "missing" in job:
            raise JobNotFound(job["missing"])
        return job

    @contextmanager
    def _one_change(self) -> Iterator[None]:
        """Raise Busy while another thread is in such a block: it reads all dead jobs."""
        if not self._change.acquire(blocking=False):
            raise Busy(CHANGE_RUNS)
        try:
            yield
        finally:
            self._change.release()

    def use(self, use: Callable[[DeadSet], T]) -> T:
        """Use the dead set, and cache nothing."""
        answer: T = self._ask_server(self._of_dead_set(use))
        return answer

    def _of_dead_set(self, use: Callable[[DeadSet], T]) -> Question[T]:
        """Make a question of a use of the dead set. Each use gets a ``DeadSet`` of its own, since
        that counts the failures of the result backend."""
        return lambda inspector: use(DeadSet(self._app, inspector.database.client))

    def _shown_by(self, jobs: Iterable[DeadJob], asked: dict[str, str]) -> Iterator[DeadJob]:
        """Yield those jobs whose reason, as it is shown, has the text that is asked for. If the
        stored reason were searched, a visitor could guess what it hides."""
        part = asked.get("reason", "").casefold()
        for job in jobs:
            if not part or part in str(self.hidden(job)["reason"]).casefold():
                yield job

    def hidden(self, job: DeadJob) -> dict[str, Any]:
        """Return a job without its secrets, and without its payload, which has them all."""
        record = job.as_dict()
        del record["payload"]
        return self._hiding.job(record, parameters_of(self._app, job.task))


def _patterns(asked: dict[str, str]) -> dict[str, Any]:
    """Translate a search for a ``DeadFilter``: a part of a task's name is enough. A text that is in
    the shown reason is in the stored one, too, unless it contains the mask."""
    patterns = dict(asked)
    if "task" in asked and "*" not in asked["task"]:
        patterns["task"] = f"*{asked['task']}*"
    if "*" in asked.get("reason", ""):
        del patterns["reason"]
    return patterns
