"""Send the jobs of a storm from a thread: all kinds, in a mix that the seed decides.

The storm (`evidence/storm/__init__.py`) uses `Load` while it does harms. Each job is written to the
history after it was sent, so a job that is sent as the program dies may be missing there.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, chain, chord, group

from ..history import History
from .odd import ODD
from .tasks import PILL_RUNS, STOP_RUNS, STOPS

#: The queue of most workers; of one solo worker; and of one worker whose pool loads slowly.
SHARED, ORDERED, SLOW = "celery", "ordered", "slow"
QUEUES = (SHARED, ORDERED, SLOW)

#: Kind -> its share of the messages, in thousandths.
MIX = {
    "plain": 517.3,
    "long": 20,
    "priority": 100,
    "ordered": 100,
    "slow": 3,
    "eta": 80,
    "retry": 60,
    "chain": 40,
    "chord": 39,
    "again": 20,
    "group": 0.1,
    "crowd": 0.1,
    "odd": 10,
    "callback": 3,
    "errback": 2,
    "link": 2,
    "pages": 2,
    "poison": 1,
    "stopper": 0.5,
}
#: Kinds -> what has to happen to each job, whatever harms hit it. Written before the first run, and
#: copied into each history.
EXPECTED = {
    "plain, long, priority, ordered, slow, eta": "it ends; again only after a harm to its run",
    "eta": "it begins when it is due, and no sooner",
    "ordered": "they begin in the order in which they were sent, unless harms hit their worker",
    "retry, chain, chord": "each step has one message, a body gets one value of each part",
    "again": "it ends, whatever happens to other jobs with its task id (some kill their process)",
    "group, crowd": "each of thousands of parts ends; the body of a crowd gets one value of each",
    "odd": "FAILURE, or no result if it was rejected or ignored; no slot, worker or job is lost",
    "callback, errback, link": "each message that a run published by hand runs, separately; "
    "the followers that Celery publishes run once, as those of other jobs",
    "pages": "each retry runs; a retry that an earlier run published may replace that of a later "
    "run",
    "poison": f"{PILL_RUNS} runs, then FAILURE; another only for each that something else ended",
    "stopper": f"it ends, or FAILURE after {STOP_RUNS} runs ({PILL_RUNS} if it raises an exception "
    "that stops a worker); another run only for each that something else ended, or that is a "
    "strike since KILL follows TERM too soon; no other job waits for it",
    "all": "none is overtaken by jobs sent 45 s later, none is given up unless it kills processes "
    "or stops workers; no process of a pool loads without running a job; at the end nothing waits",
}
#: Parts of a chord of usual size.
PARTS = 3
#: Parts of a large group, and of a large chord.
GROUP_PARTS, CROWD_PARTS = (1000, 2000), 1000
#: Number of task ids that several jobs share, and the share of these jobs that kill their process.
IDS, KILLING = 5, 0.02


class Load:
    """A sender of jobs in a thread, as a context manager: it sends until it is left.

    Arguments:
        app: the app whose tasks are sent.
        history: gets a line for each job.
        seed: seed of the kinds and of the arguments.
        rate: messages per second.
    """

    def __init__(self, app: Celery, history: History, seed: int, rate: float) -> None:
        self.app, self.history = app, history
        self.sent = 0
        #: (job, step) of each step that has a result.
        self.steps: list[tuple[str, str]] = []
        self._dice = random.Random(seed)
        self._pause = 1 / rate
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send, name="load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _send(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            # After an outage the sender catches up on one second of jobs at most. Without this
            # limit, all jobs of a long outage would arrive at once.
            due = max(due + self._pause, time.monotonic() - 1)
            kind = self._dice.choices(list(MIX), list(MIX.values()))[0]
            job = f"j{self.sent}"
            self.sent += 1
            # A job draws its random numbers before it is sent. If an error in sending changed
            # their number, the kinds of later jobs would depend on it.
            facts, send = getattr(self, f"_{kind}", self._plain)(kind, job)
            began = time.time()
            try:
                send()
            except Exception as exc:
                facts["doubt"] = type(exc).__name__
            times = {"at": round(began, 4), "until": round(time.time(), 4)}
            line = {"kind": kind, "job": job, "queue": SHARED, **facts, **times}
            self.history.write("send", **line)
            if not facts.keys() & {"doubt", "shared"}:
                self.steps += [(job, name) for name in facts["steps"] if "#" not in name]

    # -- one method for each kind: it returns facts for the history, and the function that sends

    def _step(self, job: str, step: str, task: str = "storm.step", **settings: Any) -> Any:
        """Return the signature of a step. Celery does not retry to send it: after an error the
        history says that the job may have been sent or not."""
        settings = {"seconds": round(self._dice.uniform(0, 0.03), 3), **settings}
        signature = self.app.tasks[task].s(job=job, step=step, **settings)
        return signature.set(task_id=f"{job}:{step}", retry=False)

    def _plain(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        return {"steps": ["run"]}, self._step(job, "run").apply_async

    def _long(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        return {"steps": ["run"]}, self._step(job, "run", seconds=2.0).apply_async

    def _priority(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        priority = self._dice.choice((3, 6, 9))
        step = self._step(job, "run").set(priority=priority)
        return {"steps": ["run"], "priority": priority}, step.apply_async

    def _ordered(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        facts = {"steps": ["run"], "queue": ORDERED, "order": ORDERED}
        return facts, self._step(job, "run", seconds=0).set(queue=ORDERED).apply_async

    def _slow(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        step = self._step(job, "run").set(queue=SLOW)
        return {"steps": ["run"], "queue": SLOW}, step.apply_async

    def _eta(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        due, step = time.time() + self._dice.uniform(1, 15), self._step(job, "run")
        eta = self.app.now().fromtimestamp(due, self.app.timezone)
        return {"steps": ["run"], "due": due}, step.set(eta=eta).apply_async

    # Celery sends a retry first, and stores the state RETRY then. A retry without delay may end
    # in between. Then stock Celery's result stays RETRY for ever.
    def _retry(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        step = self._step(job, "run", act="retry", later=self._dice.choice((0, 2, 5)))
        return {"steps": ["run", "run#1"]}, step.apply_async

    def _chain(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        steps = ["a", "b", "c"]
        return {"steps": steps}, chain(self._step(job, step) for step in steps).apply_async

    def _chord(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        parts = [f"p{number}" for number in range(PARTS)]
        body = self._step(job, "body")
        facts = {"steps": [*parts, "body"], "parts": PARTS, "values": parts}
        return facts, lambda: chord(self._step(job, part) for part in parts)(body)

    def _group(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        count = self._dice.randint(*GROUP_PARTS)
        parts = [f"p{number}" for number in range(count)]
        steps = [self._step(job, part, seconds=0) for part in parts]
        return {"steps": parts, "parts": count}, group(steps).apply_async

    def _crowd(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        parts = [f"p{number}" for number in range(CROWD_PARTS)]
        steps, body = [self._step(job, part, seconds=0) for part in parts], self._step(job, "body")
        facts = {"steps": [*parts, "body"], "parts": CROWD_PARTS, "values": parts}
        return facts, lambda: chord(steps)(body)

    def _again(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        """Share a task id with other jobs, so that the job has no result of its own."""
        kills, task_id = self._dice.random() < KILLING, f"again-{self._dice.randrange(IDS)}"
        step = self._step(job, "run", act="kill" if kills else "").set(task_id=task_id)
        facts = {"pill": PILL_RUNS} if kills else {}
        return {"steps": ["run"], "shared": task_id, **facts}, step.apply_async

    def _poison(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        return {"steps": ["run"], "pill": PILL_RUNS}, self._step(job, "run", act="kill").apply_async

    def _stopper(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        how, queue = self._dice.choice(list(STOPS)), self._dice.choice(QUEUES)
        step = self._step(job, "run", "storm.stopper", act="stop", how=how).set(queue=queue)
        facts = {"steps": ["run"], "pill": STOPS[how], "stops": how, "queue": queue}
        return facts, step.apply_async

    def _odd(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        how, queue = self._dice.choice(list(ODD)), self._dice.choice((SHARED, SHARED, ORDERED))
        step = self._step(job, "run", act="raise", how=how).set(queue=queue)
        facts = {"steps": ["run"], "raises": how, "ends": ODD[how][1], "queue": queue}
        return facts, step.apply_async

    # -- jobs that publish messages by hand, in addition to those that Celery publishes for them

    def _callback(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        step, after = self._step(job, "run", act="publish"), self._step(job, "after")
        return {"steps": ["run", "after"]}, lambda: step.apply_async(link=after)

    def _errback(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        """Send a job with an errback. The run succeeds, so the errback runs only for the messages
        that the run publishes by hand."""
        step, after = self._step(job, "run", act="publish"), self._step(job, "after")
        return {"steps": ["run"]}, lambda: step.apply_async(link_error=after)

    def _link(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        steps = [self._step(job, "a", act="publish"), self._step(job, "b")]
        return {"steps": ["a", "b"]}, chain(steps).apply_async

    def _pages(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        return {"steps": ["run"]}, self._step(job, "run", act="pages").apply_async
