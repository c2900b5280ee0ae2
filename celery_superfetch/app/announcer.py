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
from ..owner.membership import Membership
from ..signals import job_killed
from ..store.announcements import Announcement, TakenOver
from ..store.dead_jobs import DeadJob, DeadJobs
from .announcing import Telling, own_backend
from .broker import database_of

logger = get_logger(__name__)

#: Seconds after which a try counts as hanging; forks do not wait for it any longer either.
LIMIT = forks.LIMIT

#: Threads of a process at most: while one hangs the next goes on with the other jobs.
THREADS = 4

#: Seconds until a job is tried again; each time twice as many, up to the longest.
PAUSE, LONGEST_PAUSE = 10.0, 3600.0

#: Tries that may fail before a process that waits for the end leaves the others to a later pass.
FAILURES = 3

#: Seconds that the end of a worker waits for what is under way.
GRACE = 5.0

#: App and id of unannounced jobs that another has to announce -> until when it does not read them
#: again (monotonic s). Here, since those who look are not all there to stay.
_strangers: dict[tuple[str, str], float] = {}


class Announcements:
    """The killed jobs that a process knows of, and is going to announce.

    Arguments:
        client: a plain client for the broker's database.
        owner: tells the owner that announces; empty where there is none.
        waits: a pass announces at its end, and without a thread: its process may end then.
    """

    def __init__(
        self, app: Celery, client: Redis, owner: Callable[[], str] = str, *, waits: bool = False
    ) -> None:
        self.app = app
        self.dead_jobs = DeadJobs(database_of(app, client))
        self.owner = owner
        self.waits = waits
        self._waiting: deque[DeadJob] = deque()
        #: Job under way -> since when (monotonic s).
        self._since: dict[str, float] = {}
        #: Job -> when it is tried again (monotonic s), and after how long.
        self._pauses: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def soon(self, job: DeadJob) -> None:
        """Announce a job that was killed here, before those that others left."""
        with self._lock:
            self._waiting.appendleft(job)
        self.attend()

    def look(self) -> None:
        """Announce what others left, as far as it is due.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        now = monotonic()
        self._pauses = {k: v for k, v in self._pauses.items() if v[0] > now - 2 * LONGEST_PAUSE}
        with self._lock:
            known = {*self._since, *(job.id for job in self._waiting)}
        known |= {id for id, (until, _) in self._pauses.items() if until > now}
        app_name = self.dead_jobs.config.app_name
        for key in [key for key, until in _strangers.items() if until <= now]:
            _strangers.pop(key, None)
        known |= {id for name, id in list(_strangers) if name == app_name}
        for job in self.dead_jobs.unannounced(known):
            if self._is_ours(job):
                with self._lock:
                    self._waiting.append(job)
            else:
                _strangers[app_name, job.id] = now + LONGEST_PAUSE
        self.attend()

    def attend(self) -> None:
        """See that somebody is at it who does not hang. To be called once a second."""
        if self.waits or not self._waiting:
            return
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            hanging = [id for id, since in self._since.items() if monotonic() - since >= LIMIT]
            if len(hanging) == len(self._threads) < THREADS:
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
                self._threads.append(thread)
                thread.start()

    def after_pass(self) -> None:
        """Announce now, where the process may end after a pass."""
        if self.waits:
            self._run(FAILURES)
            self._waiting.clear()

    def stop(self) -> None:
        """Begin nothing more; what takes too long is left to others."""
        with self._lock:
            self._waiting.clear()
        for thread in self._threads:
            thread.join(GRACE)

    def _run(self, failures: int = -1) -> None:
        """Announce until nothing waits.

        Arguments:
            failures: how many end it before; fewer than 0 for any number.
        """
        backend = None
        while failures:
            with self._lock:
                if not self._waiting:
                    # While it is locked: who comes from here on has to start another.
                    with suppress(ValueError):
                        self._threads.remove(threading.current_thread())
                    return
                job = self._waiting.popleft()
                self._since[job.id] = monotonic()
            try:
                with forks.kept_off():
                    backend = backend or own_backend(self.app)
                    self._try(job, backend)
            except TakenOver:
                pass
            except Exception:  # the result backend's errors are its own
                failures -= 1
                pause = min(2 * self._pauses.get(job.id, (0.0, PAUSE / 2))[1], LONGEST_PAUSE)
                self._pauses[job.id] = monotonic() + pause, pause
                logger.exception(
                    "Killed job %s[%s] is in the dead set, but its caller could not be told. "
                    "That is tried again later.",
                    job.task,
                    job.task_id,
                )
            finally:
                del self._since[job.id]

    def _is_ours(self, job: DeadJob) -> bool:
        """Whether this app can announce a job: one without a name is anybody's."""
        if job.task is None or job.task_id is None:
            return True
        return job.app_name == self.dead_jobs.config.app_name and job.task in self.app.tasks

    def _try(self, job: DeadJob, backend: Any) -> None:
        if job.task is None or job.task_id is None:  # nobody waits for it
            job_killed.send(sender=self.app, job=job)
            self.dead_jobs.announced(job.id)
        elif self._is_ours(job):
            right = Announcement(self.dead_jobs.database, job.id, self.owner())
            if not right.begin():
                return
            try:
                Telling(self.app, job, right, backend).go()
                right.done()
            except Exception:
                with suppress(RedisError):
                    right.give_back()
                raise


_known: dict[tuple[Celery, Membership], Announcements] = {}


def announcements_of(app: Celery, membership: Membership) -> Announcements:
    """Those of a worker, as an owner."""
    made = Announcements(app, membership.client, lambda: membership.owner)
    return _known.setdefault((app, membership), made)


def stop_announcing() -> None:
    """The worker ends."""
    for announcements in list(_known.values()):
        announcements.stop()
