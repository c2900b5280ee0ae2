"""Build the app of a storm's workers and of its sender. Its tasks write each start and end to the
history, and no other code does.

`worker.py` builds it in each worker, and `fleet.py` for the sender. If a process is killed in a
run, the history has a start without an end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Retry, WorkerShutdown, WorkerTerminate
from celery.signals import task_prerun, worker_process_init, worker_process_shutdown

from ..history import History
from .odd import ODD

#: Options of the package, shortened so that recovery is as fast as the harms. The others have their
#: default.
OPTIONS = {"heartbeat_interval": 2, "owner_ttl": 10, "reap_interval": 2}

#: Seconds of the visibility timeout of the other sides: more than any job of a storm takes, and
#: more than the start of a worker.
TIMEOUT = 30
STOCK = {
    "visibility_timeout": TIMEOUT,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
PLUS = {"visibility_timeout": TIMEOUT}
SIDES = ("ours", "stock", "plus")

#: Seconds for which a client waits for a reply of the broker.
SOCKET_TIMEOUT = 5

#: Runs after which a job that kills its process is given up: the default of the package. Stock
#: Celery has no such limit.
PILL_RUNS = 3
#: Runs after which a job that stops its worker is given up: its ``superfetch_stop_limit``, far
#: below the default.
STOP_RUNS = 5

#: Manner in which a job stops its worker -> runs until it is given up. It sends a signal to the
#: main process ("TERM" with a KILL after it, as an orchestrator would), to both processes, or
#: twice; or it raises an exception that stops a worker. Such an exception is a strike, so the job
#: runs as often as one that kills its process.
STOPS = {
    "QUIT": STOP_RUNS,
    "QUIT to both": STOP_RUNS,
    "INT twice": STOP_RUNS,
    "TERM, then KILL": STOP_RUNS,
    "WorkerShutdown": PILL_RUNS,
    "WorkerTerminate": PILL_RUNS,
}
#: Seconds for which such a job continues after that, unless it is cut short; and seconds from TERM
#: to KILL.
LINGERS, GRACE = 5.0, 1.0

#: Number of messages that a run publishes by hand to each of its followers.
BY_HAND = 3


def build(env: Mapping[str, str]) -> Celery:
    """Build the app from environment variables.

    SIDE is a name of ``SIDES``, BROKER_URL and RESULT_URL are its servers, HISTORY is the file of
    the history, and WORKER is the worker's name there. WITHOUT names safeties of the package to
    remove (`tests/support/apps/without.py`), with commas. LOADS, for a pool that loads slowly, has
    the least and the most seconds that each of its processes loads, with a comma.
    """
    for name in filter(None, env.get("WITHOUT", "").split(",")):
        getattr(import_module("support.apps.without"), name)()
    side = env["SIDE"]
    app = Celery("storm", broker=env["BROKER_URL"], set_as_current=False)
    app.conf.update(
        result_backend=env["RESULT_URL"],
        result_expires=86400,
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_proc_alive_timeout=30,
        worker_pool_restarts=True,
        broker_transport_options={"socket_timeout": SOCKET_TIMEOUT},
    )
    if side == "ours":
        import celery_superfetch

        celery_superfetch.install(app, **OPTIONS)
    else:
        app.conf.broker_transport_options |= STOCK if side == "stock" else PLUS
        if side == "plus":
            app.conf.broker_transport = "celery_redis_plus.transport:Transport"
    _add_tasks(app, env)
    return app


def _load_slowly(history: History, worker: str, shortest: float, longest: float) -> None:
    """Make each process of the pool load slowly, as if it read a model, and write a line when it
    ends as intended.

    Tasks that the storm did not send (failure notifications) are written as well: if one were
    missing, the checker would report its process as one that was loaded for nothing.

    Arguments:
        history: gets the lines.
        worker: the worker's name in the history.
        shortest, longest: seconds; each process draws between them.
    """
    dice = random.SystemRandom()  # forked processes share the state of other generators

    def load(**_: Any) -> None:
        time.sleep(dice.uniform(shortest, longest))

    def unload(**_: Any) -> None:
        history.write("unload", worker=worker, pid=os.getpid())
        time.sleep(1)

    def begin(sender: Any, **_: Any) -> None:
        if not sender.name.startswith("storm."):
            history.write("work", worker=worker, pid=os.getpid(), task=sender.name)

    worker_process_init.connect(load, weak=False)
    worker_process_shutdown.connect(unload, weak=False)
    task_prerun.connect(begin, weak=False)


def _add_tasks(app: Celery, env: Mapping[str, str]) -> None:
    """Register the two tasks of the storm: one function with different options."""
    history = History(Path(env["HISTORY"]), new=False)
    worker = env.get("WORKER", "")
    main = os.getpid()  # children of a pool fork later

    def step(
        self: Any,
        *given: Any,
        job: str,
        step: str,
        seconds: float,
        act: str = "",
        how: str = "",
        later: float = 0.0,
        origin: dict[str, str] | None = None,
    ) -> str:
        """Write the start of a run, do what the job is for, and write the end.

        Arguments:
            given: the results of the steps before this one, or an origin.
            job, step: names in the history.
            seconds: how long the run takes at least.
            act: "retry" (once), "kill" (its own process), "stop" (its worker), "raise" (an
                exception of `ODD`), "publish" (messages by hand) or "pages" (retries by hand).
            how: the manner in which it stops its worker, or the name of the exception.
            later: seconds until the retry is due.
            origin: the run that published this message by hand, and which part it is.
        """
        if given and isinstance(given[0], dict):
            origin = given[0]
        name = f"{step}#{self.request.retries}" if self.request.retries else step
        run = os.urandom(6).hex()
        # kombu makes this tag when a message is published, and no redelivery changes it. So two
        # tags of one step mean that it was published twice.
        message = (self.request.properties or {}).get("delivery_tag", "")
        facts = {"job": job, "step": name, "run": run, "worker": worker, "pid": os.getpid()}
        values = origin or ({"given": given[0]} if step == "body" else {})
        history.write("start", **facts, message=message, **values)
        time.sleep(seconds)
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if act == "stop":
            _stop(main, how)
            time.sleep(LINGERS)
        if act in ("publish", "pages") and not origin:
            for part, publish in _parts(self, act, run):
                # A retry is a step of the job: a second run of the job does not publish it again.
                hand = {"job": job, "run": run, "part": part, "once": act == "pages"}
                try:
                    publish()
                except Exception as exc:
                    hand["doubt"] = type(exc).__name__
                history.write("hand", **hand)
        history.write("end", job=job, run=run)
        if act == "raise":
            raise ODD[how][0]()
        if act == "retry" and not self.request.retries:
            raise self.retry(countdown=later)
        return step

    common = {"shared": False, "bind": True, "max_retries": 1}
    app.task(name="storm.step", **common)(step)
    app.task(name="storm.stopper", superfetch_stop_limit=STOP_RUNS, **common)(step)
    app.finalize()
    if loads := env.get("LOADS"):
        _load_slowly(history, worker, *map(float, loads.split(",")))


def _stop(main: int, how: str) -> None:
    """Stop the worker of this process.

    Arguments:
        main: pid of the worker's main process: this process, or its parent.
        how: a key of ``STOPS``.
    """
    if how == "WorkerShutdown":
        raise WorkerShutdown(0)
    if how == "WorkerTerminate":
        raise WorkerTerminate(1)
    if main not in (os.getpid(), os.getppid()):
        return  # the main process has ended, and its pid may belong to another process
    name, _, more = how.partition(" ")
    number = signal.Signals[f"SIG{name.rstrip(',')}"]
    os.kill(main, number)
    if more == "to both" and main != os.getpid():
        # After the main process, never before it: the signal ends this process at once, and the
        # main process would get none. The run would be that of a job that kills its process.
        os.kill(os.getpid(), number)
    if more == "twice":
        time.sleep(0.2)
        os.kill(main, signal.SIGINT)
    if more == "then KILL":
        time.sleep(GRACE)
        os.kill(main, signal.SIGKILL)


def _parts(task: Any, act: str, run: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each message that a run publishes by hand, and the function that publishes
    it. Celery does not retry to publish it.

    With the act "pages" these are retries, with the task id of the run itself. With "publish" they
    are messages to each follower (callback, errback, next link of a chain), and one with the
    follower's task id.
    """
    request = task.request
    if act == "pages":
        for number in range(2 * BY_HAND):
            origin = {"by": run, "part": f"page {number}"}
            kwargs = {**request.kwargs, "origin": origin}
            yield origin["part"], partial(_retry, task, kwargs, throw=bool(number % 2))
        return
    followers = [*(request.callbacks or ()), *(request.errbacks or ()), *(request.chain or ())[-1:]]
    for at, follower in enumerate(followers):
        for number in range(BY_HAND):
            origin = {"by": run, "part": f"part {number} to follower {at}"}
            signature = task.app.signature(follower)
            yield origin["part"], partial(signature.apply_async, (origin,), retry=False)
        origin = {"by": run, "part": f"under the id of follower {at}"}
        kwargs = {**request.kwargs, "act": "", "origin": origin}
        options = {"task_id": follower["options"]["task_id"], "retry": False}
        yield origin["part"], partial(task.apply_async, kwargs=kwargs, **options)


def _retry(task: Any, kwargs: dict[str, Any], throw: bool) -> None:
    """Send a retry, and let the run continue.

    Arguments:
        task: the running task.
        kwargs: arguments of the retry.
        throw: whether `Task.retry` raises Retry, which is suppressed here.
    """
    with contextlib.suppress(Retry):
        task.retry(kwargs=kwargs, countdown=0, retry=False, throw=throw)


def outcome(stored: str | None) -> dict[str, str]:
    """Return the state of a task, and the type of its error, from the text that Celery stored."""
    kept = json.loads(stored) if stored else {"status": "PENDING"}
    if kept["status"] == "FAILURE":
        return {"state": "FAILURE", "type": kept["result"]["exc_type"]}
    return {"state": kept["status"]}
