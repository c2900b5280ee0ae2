"""Killed jobs that are to be announced, and the threads that do it: one may hang, others do not."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from time import monotonic
from typing import Any

from celery import Celery
from celery.utils.log import get_logger
from redis import Redis
from redis.exceptions import RedisError

from ..model import forks
from ..model.dead_job import DeadJob
from ..owner.membership import Membership
from ..signals import job_killed
from ..store.announcements import Announcement, TakenOver
from ..store.dead_jobs import Graveyard
from .announcing import Telling, own_backend
from .broker import database_of

logger = get_logger(__name__)

LIMIT = forks.LIMIT  # seconds after which a try counts as hanging; nor do forks wait for it longer
THREADS = 4  # of a process at most: while one hangs the next goes on with the other jobs
#: Seconds until a job is tried again; each time twice as many, up to the longest.
PAUSE, LONGEST_PAUSE = 10.0, 3600.0
FAILURES = 3  # tries that may fail before a pass without a thread leaves the others to a later one
GRACE = 5.0  # seconds that the end of a worker waits for what is under way


class Announcements:
    """The killed jobs that a process is going to announce: in threads, if ``owner`` names the owner
    that does it, else at the end of a pass, with which its process may end."""

    def __init__(self, app: Celery, client: Redis, owner: Callable[[], str] | None = None) -> None:
        self.app = app
        self.owner = owner
        self.dead_jobs = Graveyard(database_of(app, client))
        self.waiting: deque[DeadJob] = deque()
        #: Who announces -> the id of what, and since when (monotonic s).
        self.under_way: dict[threading.Thread, tuple[str, float]] = {}
        self.lock = threading.Lock()

    def soon(self, job: DeadJob) -> None:
        """Announce a job that was killed here, before those that others left."""
        self.waiting.appendleft(job)
        self.attend()

    def look(self) -> None:
        """Announce what others left."""
        if not self.waiting:
            self.waiting.extend(self.dead_jobs.unannounced())
        self.attend()

    def attend(self) -> None:
        """See that somebody is at it who does not hang. To be called once a second."""
        if self.owner is None or not self.waiting:
            return
        now = monotonic()
        with self.lock:
            at = self.under_way = {t: job for t, job in self.under_way.items() if t.is_alive()}
            hanging = [id for id, since in at.values() if now - since >= LIMIT]
            if len(hanging) == len(at) < THREADS:
                if hanging:
                    logger.error(
                        "The announcement of killed job %s hangs, in the result backend or in code "
                        "of its errbacks, hook or receivers. Others go on; look what it hangs in "
                        "(py-spy dump).",
                        hanging[-1],
                    )
                thread = threading.Thread(
                    target=self._run, name="superfetch-announcer", daemon=True
                )
                at[thread] = "", now
                thread.start()

    def after_pass(self) -> None:
        """Announce now, where the process may end after a pass."""
        if self.owner is None:
            self._run(FAILURES)

    def stop(self) -> None:
        """The worker ends: begin nothing more; what takes too long is left to others."""
        with self.lock:
            self.waiting.clear()
            threads = [*self.under_way]
        for thread in threads:
            thread.join(GRACE)

    def _run(self, failures: int = -1) -> None:
        """Announce until nothing waits, or so many tries have failed (-1: any number)."""
        me, backend = threading.current_thread(), cache(partial(own_backend, self.app))
        while failures:
            with self.lock:
                if not self.waiting:  # this thread ends, and another is for what comes
                    self.under_way.pop(me, None)
                    return
                job = self.waiting.popleft()
                self.under_way[me] = job.id, monotonic()
            try:
                with forks.kept_off():
                    if self._is_ours(job):
                        self._announce(job, backend)
            except TakenOver:
                pass
            except Exception:  # the result backend's errors are its own
                failures -= 1
                logger.exception(
                    "Killed job %s[%s] is in the dead set, but its caller could not be told. "
                    "That is tried again later.",
                    job.task,
                    job.task_id,
                )

    def _is_ours(self, job: DeadJob) -> bool:
        """Whether this app can announce a job; one without a name anybody can."""
        ours = job.app_name == self.dead_jobs.config.app_name and job.task in self.app.tasks
        return ours or None in (job.task, job.task_id)

    def _announce(self, job: DeadJob, backend: Callable[[], Any]) -> None:
        right = Announcement(self.dead_jobs.database, job.id, self.owner() if self.owner else "")
        right.begin()
        try:
            if None in (job.task, job.task_id):  # nobody waits for it
                job_killed.send(sender=self.app, job=job)
            else:
                Telling(self.app, job, right, backend()).go()
            right.done()
        except Exception:
            pause = min(2 * right.pause or PAUSE, LONGEST_PAUSE) if self.owner else 0.0
            with suppress(RedisError, TakenOver):
                right.give_back(pause)
            raise


@cache
def announcements_of(app: Celery, membership: Membership) -> Announcements:
    """Those of a worker, as an owner."""
    return Announcements(app, membership.client, lambda: membership.owner)
