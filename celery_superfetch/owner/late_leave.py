"""The thread that finishes the leave of an owner whose last channel has closed while the Redis
server could not be reached, or refused to take its jobs back.

``Owner.leave`` starts it in a process whose jobs no maintenance thread settles (plain kombu), and
``worker/bootsteps.py`` does when a worker has ended: its process may continue, if the worker was
embedded. The thread ends when the owner has left, or has a channel again. It is a daemon: it does
not keep the interpreter alive, and at the exit of the process the owner leaves once more
(``Owner.leave_for_good``). If the process dies, a peer's reaper recovers the jobs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import sleep

from ..model import fork_gate
from ..model.log_text import one_line_each

logger = one_line_each(logging.getLogger(__name__))

LEAVE_INTERVAL_S = 1.0  # before the first try, and between two


class LateLeave(threading.Thread):
    """Calls ``try_to_leave`` each second until that returns True."""

    def __init__(self, try_to_leave: Callable[[], bool]) -> None:
        super().__init__(name="superfetch-leave", daemon=True)
        self._try_to_leave = try_to_leave

    def run(self) -> None:
        fork_gate.mark_thread()
        has_left = False
        while not has_left:
            sleep(LEAVE_INTERVAL_S)
            try:
                # A child that is forked in the middle would inherit locks that this thread holds.
                with fork_gate.kept_off():
                    has_left = self._try_to_leave()
            except Exception:  # without this thread the jobs would stay until the process ends
                logger.exception(
                    "The jobs of a closed consumer could not be requeued yet: they stay in Redis. "
                    "Tried again every %g s. If this repeats, end this process, after which they "
                    "are recovered, and report the error with its traceback.",
                    LEAVE_INTERVAL_S,
                )
