"""A worker's pool, whichever it is, and Celery's books of what it runs: the rest asks here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery.platforms import EX_OK
from celery.worker import state

from ..app.events import monitors_of
from ..model.process import start_time
from ..owner.in_flight.runner import Runner
from .private_names import EVENTLET, SOLO, THREADS


def is_solo(pool: Any) -> bool:
    """Whether jobs run in the consumer's own thread."""
    return type(pool).__module__ == SOLO


def is_threads(pool: Any) -> bool:
    """Whether jobs run in threads of this process."""
    return type(pool).__module__ == THREADS


def has_loop(pool: Any) -> bool:
    """Whether ``pool`` is one of processes, and served by the worker's event loop."""
    return bool(pool.uses_semaphore) and not pool.options.get("threads", True)


def note_greenlets(pool: Any) -> None:
    """Have eventlet's ``pool`` remember the latest greenlet: it returns none, unlike gevent's."""
    if type(pool).__module__ != EVENTLET:
        return
    spawn = pool._quick_put

    def noted(*args: Any) -> Any:
        pool.latest_greenlet = spawn(*args)
        return pool.latest_greenlet

    pool._quick_put = noted


def tell_end(pool: Any, result: Any, told: Callable[[Any], object]) -> None:
    """Call ``told`` when a greenlet that was just started has ended, also if it was killed."""
    if result is None:
        pool.latest_greenlet.link(told)
    else:
        result.rawlink(told)  # its ``link`` would start one more greenlet


def running() -> int:
    """How many jobs this process runs, as Celery counts them."""
    return len(state.active_requests)


def reserved() -> int:
    """How many jobs it runs, or would run if there were a slot."""
    return len(state.reserved_requests)


def over(request: Any) -> None:
    """Take a job out of the books."""
    state.task_ready(request)


def enter_again(request: Any) -> None:
    """Have one that runs be one that waits for a slot."""
    state.task_ready(request)
    state.task_reserved(request)


def requests_of(message: Any) -> list[Any]:
    """Those in the books that stand for ``message``."""
    known = [*state.reserved_requests, *state.requests.values()]
    return [request for request in known if request.message is message]


def process_ends() -> bool:
    """What Celery tells all workers of a process; it is taken back where one was embedded."""
    for flag in (state.should_stop, state.should_terminate):
        if flag is not None and flag is not False:  # an exit code of 0 says stop as well
            return True
    return False


def end_process() -> None:
    """Tell all workers of the process to stop when their jobs have ended."""
    state.should_stop = EX_OK


class PoolRunner(Runner):
    """A worker's pool as the one that runs what its connection brings."""

    endless = True

    def __init__(self, worker: Any) -> None:
        self.worker, self.pool = worker, worker.pool
        self.node = worker.hostname
        self.inline, self.threads = is_solo(self.pool), is_threads(self.pool)
        self.green = bool(self.pool.is_green)
        self._monitors = monitors_of(worker.app)
        self._turns = 0
        self._start_times: dict[int, str] = {}

    @property
    def slots(self) -> int:
        """How many jobs run at once."""
        # gevent's, on Celery 5.5, counts the greenlets that run.
        return int(self.pool.num_processes if self.pool.uses_semaphore else self.pool.limit)

    def reserve(self) -> int:
        """How many jobs wait for a slot; not those that wait for their time, or a rate limit.

        Celery before 5.7 forgets at a reconnect that what runs on was reserved.
        """
        return max(0, reserved() - running())

    def pids(self) -> Sequence[tuple[int, str]]:
        """Those of prefork; other pools have no processes."""
        processes = getattr(getattr(self.pool, "_pool", None), "_pool", None)
        pids = [p.pid for p in list(processes or ()) if isinstance(getattr(p, "pid", None), int)]
        known = self._start_times
        self._start_times = {pid: known.get(pid) or start_time(pid) or "" for pid in pids}
        return sorted(self._start_times.items())

    def on_turn(self) -> None:
        self._turns += 1
        self._monitors.drain()

    def on_close(self) -> None:
        self._turns = 0

    def turns(self) -> int:
        """0 while a job in the loop's own thread may keep it."""
        return 0 if (self.inline or self.green) and running() else self._turns
