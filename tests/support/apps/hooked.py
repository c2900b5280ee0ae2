"""The shop under other people's fork hooks, and with tasks that fork.

Of the hooks, half are registered before the package is imported, and half after it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

from celery.signals import task_received

logger = logging.getLogger("hooked")


def join_a_thread_that_logs() -> None:
    """As tracers do, which stop their own thread before a fork."""
    thread = threading.Thread(target=logger.info, args=("before a fork",), daemon=True)
    thread.start()
    thread.join()


def log() -> None:
    logger.info("before a fork")


os.register_at_fork(before=join_a_thread_that_logs)
os.register_at_fork(before=log)

from support.apps.shop import app, ledger  # noqa: E402

os.register_at_fork(before=join_a_thread_that_logs)
os.register_at_fork(before=log)


@app.task(name="hooked.fork", shared=False)
def fork(job: str, how: str) -> str:
    """Fork a process that comes back into the worker, which it should not."""
    ledger().started(job)
    if not (pid := os.fork()):
        if how == "raises":
            raise ValueError("in the child")
        if how == "exits":
            sys.exit(3)
        if how == "is interrupted":
            raise KeyboardInterrupt
        return "from the child"
    os.waitpid(pid, os.WNOHANG if os.environ.get("WITHOUT") else 0)
    ledger().finished(job)
    return "from the parent"


@task_received.connect(weak=False)
def fork_in_the_main_process(request: Any, **_: Any) -> None:
    """As the job asks for: its process comes back into the worker."""
    if "forks as it is received" in request.argsrepr and not os.fork():
        return


app.finalize()
