"""The app of the storm's workers: its tasks write down what they do, and nobody else does."""

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

#: Options of ours: as quick as the storm. What is left out is the default.
OPTIONS = {"heartbeat_interval": 2, "owner_ttl": 10, "reap_interval": 2}

#: Seconds of the others' visibility timeout: longer than any job here, and than a worker's start.
TIMEOUT = 30
STOCK = {
    "visibility_timeout": TIMEOUT,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
PLUS = {"visibility_timeout": TIMEOUT}
SIDES = ("ours", "stock", "plus")

#: Seconds for which a client waits for the broker.
SOCKET_TIMEOUT = 5

#: Runs of a pill that each side may need: ours by its default, stock has no limit of its own.
PILL_RUNS = 3
#: Runs of a job that stops its worker: its ``superfetch_stop_limit``, far below the default.
STOP_RUNS = 5

#: How a job stops its worker: by a signal to the main process ("TERM" with a KILL after it, as an
#: orchestrator has it), to both processes, twice, or by what a task may raise. The latter is the
#: job's own doing: a strike, so that it runs as often as a pill.
STOPS = {
    "QUIT": STOP_RUNS,
    "QUIT to both": STOP_RUNS,
    "INT twice": STOP_RUNS,
    "TERM, then KILL": STOP_RUNS,
    "WorkerShutdown": PILL_RUNS,
    "WorkerTerminate": PILL_RUNS,
}
#: Seconds for which the body of such a job goes on, unless it is cut short; and its worker's grace.
LINGERS, GRACE = 5.0, 1.0

#: How many messages a body publishes by hand, to each of its followers.
BY_HAND = 3


def build(env: Mapping[str, str]) -> Celery:
    """The app from SIDE, BROKER_URL, RESULT_URL, HISTORY, WORKER, WITHOUT (safeties taken out), and
    LOADS: between how many seconds each process of the pool takes to load, and to end."""
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
    """As a process that reads a model before its first job, and writes something at its end. Jobs
    that the load did not send (failure notifications) use a process up as well: they are recorded.
    """
    dice = random.SystemRandom()  # each process forks with the same state of all others

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
        """Act: "retry" (once, so many seconds later), "kill" (its own process), "stop" (its
        worker), "raise" (an exception of `ODD`), "publish" or "pages" (by hand). Origin: which part
        of which run this is, where it was published by hand."""
        if given and isinstance(given[0], dict):
            origin = given[0]
        name = f"{step}#{self.request.retries}" if self.request.retries else step
        run = os.urandom(6).hex()
        # kombu makes this tag when a message is published, and no redelivery changes it.
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
                # A retry is a step of the job, which a second run does not publish again.
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
    """Stop the worker whose main process is this one, or this one's parent."""
    if how == "WorkerShutdown":
        raise WorkerShutdown(0)
    if how == "WorkerTerminate":
        raise WorkerTerminate(1)
    if main not in (os.getpid(), os.getppid()):
        return  # it has ended already; its pid may be another's
    name, _, more = how.partition(" ")
    name = name.rstrip(",")
    for pid in {main, os.getpid()} if more == "to both" else {main}:
        os.kill(pid, signal.Signals[f"SIG{name}"])
    if more == "twice":
        time.sleep(0.2)
        os.kill(main, signal.SIGINT)
    if more == "then KILL":
        time.sleep(GRACE)
        os.kill(main, signal.SIGKILL)


def _parts(task: Any, act: str, run: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What a run publishes by hand, by its names, each without Celery's own tries: messages with
    the id of the run itself ("pages"), or of each step that Celery publishes at its end."""
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
    """Send a retry, and go on; whoever wants no exception swallows it."""
    with contextlib.suppress(Retry):
        task.retry(kwargs=kwargs, countdown=0, retry=False, throw=throw)


def outcome(stored: str | None) -> dict[str, str]:
    """State of a task, and the type of its error, from the text that Celery keeps of it."""
    kept = json.loads(stored) if stored else {"status": "PENDING"}
    if kept["status"] == "FAILURE":
        return {"state": "FAILURE", "type": kept["result"]["exc_type"]}
    return {"state": kept["status"]}
