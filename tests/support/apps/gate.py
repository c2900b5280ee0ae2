"""Forks under other threads: `python -m support.apps.gate <program> [ungated]`; what a child did.

A child that hangs is ended by its alarm.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from typing import Any

logger = logging.getLogger("gate")


def child_does(act: Any) -> None:
    """Fork, and say how the child ended that was to `act`."""
    pid = os.fork()
    if not pid:
        signal.alarm(5)
        act()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    print("hung" if os.WIFSIGNALED(status) else "done", flush=True)
    os._exit(0)


def log_file() -> None:
    """Another thread stands in the midst of a line for the log, until somebody reads."""
    read, write = os.pipe()
    stream = os.fdopen(write, "w", buffering=1)
    logger.addHandler(logging.StreamHandler(stream))
    threading.Thread(target=logger.error, args=("x" * 200_000,), daemon=True).start()
    os.read(read, 1)  # it has begun, and there is more than the pipe takes

    def drain() -> None:
        time.sleep(0.3)  # the fork comes first
        while os.read(read, 65536):
            pass

    threading.Thread(target=drain, daemon=True).start()

    def log() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)
        logger.error("from the child")

    child_does(log)


def hanging() -> None:
    """Another thread never comes out again: the fork waits for it, and not for ever."""
    from celery_superfetch.model import forks

    forks.LIMIT = 1.0
    logging.basicConfig(stream=sys.stdout)
    inside = threading.Event()

    def hang() -> None:
        with forks.kept_off():
            inside.set()
            threading.Event().wait()

    threading.Thread(target=hang, name="one-that-hangs", daemon=True).start()
    inside.wait()

    def go_in() -> None:
        with forks.kept_off():
            pass

    child_does(go_in)


if __name__ == "__main__":
    if sys.argv[2:] != ["ungated"]:
        import celery_superfetch.model.forks  # noqa: F401
    {"log_file": log_file, "hanging": hanging}[sys.argv[1]]()
