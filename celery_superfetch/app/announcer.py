"""Killed jobs that are to be announced, and the threads that do it: one may hang, others do not."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
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

#: Seconds after which a try counts as hanging; forks do not wait for it any longer either.
LIMIT = forks.LIMIT

#: Threads of a process at most: while one hangs the next goes on with the other jobs.
THREADS = 4

#: Seconds until a job is tried again; each time twice as many, up to the longest.
PAUSE, LONGEST_PAUSE = 10.0, 3600.0

#: Tries that may fail before a pass without a thread leaves the others to a later one.
FAILURES = 3

#: Seconds that the end of a worker waits for what is under way.
GRACE = 5.0

#: App and id of an unannounced job -> until when it is left alone (monotonic s), and how long
#: that is. Of the process, since those who look are not all there to stay.
_left_alone: dict[tuple[str, str], tuple[float, float]] = {}


class Announcements:
    """The killed jobs that a process knows of, and is going to announce.

    Arguments:
        owner: names the owner that announces, in threads of its own. None: a pass announces at
            its end, and its process may end then.
    """

    def __init__(self, app: Celery, client: Redis, owner: Callable[[], str] | None = None) -> None:
        self.app = app
        self.owner = owner
        self.dead_jobs = Graveyard(database_of(app, client))
        self.app_name = self.dead_jobs.config.app_name
        self.waiting: deque[DeadJob] = deque()
        #: Who announces -> the id of what, and since when (monotonic s).
        self.under_way: dict[threading.Thread, tuple[str, float]] = {}
        self.lock = threading.Lock()

    def soon(self, job: DeadJob) -> None:
        """Announce a job that was killed here, before those that others left."""
        self.waiting.appendleft(job)
        self.attend()

    def look(self) -> None:
        """Announce what others left, as far as it is due."""
        now = monotonic()
        known = {job.id for job in [*self.waiting]} | {id for id, _ in [*self.under_way.values()]}
        for (app_name, id), (until, _) in [*_left_alone.items()]:
            if until < now - LONGEST_PAUSE:
                _left_alone.pop((app_name, id), None)
            elif until > now and app_name == self.app_name:
                known.add(id)
        for job in self.dead_jobs.unannounced(known):
            if not self._is_ours(job):
                _left_alone[self.app_name, job.id] = now + LONGEST_PAUSE, LONGEST_PAUSE
            else:
                self.waiting.append(job)
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
            self.waiting.clear()
            self.under_way.clear()

    def _run(self, failures: int = -1) -> None:
        """Announce until nothing waits, or so many tries have failed (-1: any number)."""
        backend, me = None, threading.current_thread()
        while failures:
            with self.lock:
                if not self.waiting:  # this thread ends, and another is for what comes
                    self.under_way.pop(me, None)
                    return
                job = self.waiting.popleft()
                self.under_way[me] = job.id, monotonic()
            try:
                with forks.kept_off():
                    backend = backend or own_backend(self.app)
                    self._try(job, backend)
            except TakenOver:
                pass
            except Exception:  # the result backend's errors are its own
                failures -= 1
                if self.owner is not None:
                    key = self.app_name, job.id
                    pause = min(2 * _left_alone.get(key, (0.0, PAUSE / 2))[1], LONGEST_PAUSE)
                    _left_alone[key] = monotonic() + pause, pause
                logger.exception(
                    "Killed job %s[%s] is in the dead set, but its caller could not be told. "
                    "That is tried again later.",
                    job.task,
                    job.task_id,
                )

    def _is_ours(self, job: DeadJob) -> bool:
        """Whether this app can announce a job; one without a name anybody can."""
        ours = job.app_name == self.app_name and job.task in self.app.tasks
        return ours or None in (job.task, job.task_id)

    def _try(self, job: DeadJob, backend: Any) -> None:
        if not self._is_ours(job):
            return
        right = Announcement(self.dead_jobs.database, job.id, self.owner() if self.owner else "")
        if None in (job.task, job.task_id):  # nobody waits for it
            job_killed.send(sender=self.app, job=job)
            return right.done()
        right.begin()
        try:
            Telling(self.app, job, right, backend).go()
            right.done()
        except Exception:
            with suppress(RedisError, TakenOver):
                right.give_back()
            raise


_known: dict[tuple[Celery, Membership], Announcements] = {}


def announcements_of(app: Celery, membership: Membership) -> Announcements:
    """Those of a worker, as an owner."""
    made = Announcements(app, membership.client, lambda: membership.owner)
    return _known.setdefault((app, membership), made)


def stop_announcing() -> None:
    """The worker ends: begin nothing more; what takes too long is left to others."""
    for announcements in [*_known.values()]:
        with announcements.lock:
            announcements.waiting.clear()
            threads = [*announcements.under_way]
        for thread in threads:
            thread.join(GRACE)
