"""Who runs the jobs of a process, as its owner and its fetch see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Runner:
    """Here the consumer itself, and nobody knows when it begins; a Celery worker's is its ``Gate``.
    The heart's thread asks for ``pids`` and ``turns``, the loop's does the rest."""

    worker: Any = None  # Celery's; another consumer has none
    node = ""  # Celery's name of it
    tasks = ""  # tells its set of tasks from others
    prefork = False  # each job runs in a process of its own
    inline = False  # jobs are sure to run in the thread that delivers them (Celery's solo pool)
    endless = False  # its loop turns until it ends, and hears who rings from another thread
    #: Makes the notice of a killed job for its queue list; None: nobody here could tell its caller.
    notice: Callable[[str], bytes] | None = None
    run_counts: Any = None  # how its runs end; only a worker counts
    ends_jobs = False  # a cold shutdown has begun: the running jobs are ended
    failure: BaseException | None = None  # what ends that loop, at its next turn at the latest

    def is_registered(self, task: str) -> bool:
        """Return whether its app has a task of this name."""
        return False

    def pids(self) -> Sequence[tuple[int, str]]:
        return ()

    def not_before(self, task: str, owner: Any) -> float:
        """When a job that was delivered may run (s since the epoch)."""
        return 0.0

    def busy(self, unsettled: bool) -> bool:
        """Whether something runs; where nobody knows more, what is held and ``unsettled`` may."""
        return unsettled

    def free(self) -> int:
        """How many more jobs it would run at once: a claim would record what is not delivered."""
        return 0

    def reserve(self) -> int:
        """How many jobs wait for it: none, what is delivered may run."""
        return 0

    def pump(self) -> None:
        """Begin with what waits, if that may start by now."""

    def on_turn(self) -> None:
        """The consumer's loop comes by."""

    def on_close(self) -> None:
        """Its connection closes, and with it the loop."""

    def turns(self) -> int:
        """How often the loop has turned; 0: there is none to vouch for."""
        return 0


CONSUMER = Runner()  # whoever consumes without a pool
