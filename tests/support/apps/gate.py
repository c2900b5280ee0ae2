"""Forks under other threads: `python -m support.apps.gate <program> [...]`; what a child did.

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
ours = logging.getLogger("celery_superfetch.gate")


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
    """A thread of the package stands in the midst of a line for the log, until the pipe is read."""
    read, write = os.pipe()
    stream = os.fdopen(write, "w", buffering=1)
    ours.addHandler(logging.StreamHandler(stream))

    def write_much() -> None:
        if "ungated" not in sys.argv:
            fork_gate.mark_thread()
        ours.error("x" * 200_000)

    threading.Thread(target=write_much, daemon=True).start()
    os.read(read, 1)  # it has begun, and there is more than the pipe takes

    def drain() -> None:
        time.sleep(0.3)  # the fork comes first
        while os.read(read, 65536):
            pass

    threading.Thread(target=drain, daemon=True).start()

    def log() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)
        ours.error("from the child")

    child_does(log)


def hanging() -> None:
    """Another thread never comes out again: the fork waits for it, and not for ever."""
    fork_gate.FORK_WAIT_MAX_S = 1.0
    logging.basicConfig(stream=sys.stdout)
    inside = threading.Event()

    def hang() -> None:
        with fork_gate.kept_off():
            inside.set()
            threading.Event().wait()

    threading.Thread(target=hang, name="one-that-hangs", daemon=True).start()
    inside.wait()

    def go_in() -> None:
        with fork_gate.kept_off():
            pass

    child_does(go_in)


def in_a_thread(act: Any) -> None:
    """What a hook does that waits for another thread: it joins one that acts."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join()


def nested() -> None:
    """Fork, once: that fork's hooks come by here, too."""
    if not getattr(nested, "forks", False):
        vars(nested)["forks"] = True
        if not (pid := os.fork()):
            os._exit(0)
        os.waitpid(pid, 0)
        vars(nested)["forks"] = False


def take_import_lock() -> None:
    """Import a module that was not imported yet."""
    sys.modules.pop("this_hook_imports", None)
    sys.modules.pop("colorsys", None)
    import colorsys  # noqa: F401


def connect() -> None:
    """Publish a message over a connection of its own."""
    import kombu

    with kombu.Connection(os.environ["URL"], transport="celery_superfetch:Transport") as own:
        own.Producer().publish("from a hook", routing_key="answers", serializer="json")


def log_ours() -> None:
    ours.warning("from a hook's thread")


def signal_ours() -> None:
    from celery_superfetch import job_recovered

    job_recovered.send(sender=None, recovery=None)


HOOKS = {
    "joins a thread that logs": lambda: in_a_thread(lambda: logger.warning("from a thread")),
    "joins a thread that logs by our logger": lambda: in_a_thread(log_ours),
    "joins a thread that sends our signal": lambda: in_a_thread(signal_ours),
    "joins a thread that connects": lambda: in_a_thread(connect),
    "logs": lambda: logger.warning("from a hook"),
    "forks": nested,
    "imports": take_import_lock,
    "connects": connect,
}


def hooks() -> None:
    """Fork five times under other people's hooks, while a thread of the package logs."""

    def log_on() -> None:
        fork_gate.mark_thread()
        while True:
            log_ours()
            time.sleep(0.001)

    threading.Thread(target=log_on, daemon=True).start()
    for _ in range(4):
        if not (pid := os.fork()):
            signal.alarm(5)
            log_ours()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    child_does(log_ours)


if __name__ == "__main__":
    program, *words = sys.argv[1:]
    if program == "hooks":  # hooks <name> early|late [locked]
        hook, when, *locked = words
        logging.basicConfig(stream=open(os.devnull, "w"))  # noqa: SIM115
        if when == "early":
            os.register_at_fork(before=HOOKS[hook])
        import celery_superfetch.model.fork_gate as fork_gate

        if when == "late":
            os.register_at_fork(before=HOOKS[hook])
        if locked:
            from support.apps import without

            without.free_locks()
    else:
        import celery_superfetch.model.fork_gate as fork_gate
    {"log_file": log_file, "hanging": hanging, "hooks": hooks}[program]()
