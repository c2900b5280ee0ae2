"""A programme of Celery's features: sent to one worker all at once, and checked at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery, chain, chord, group
from celery.exceptions import ChordError, TimeLimitExceeded
from celery.states import READY_STATES

from support.servers.ledger import Ledger
from support.waiting import eventually


class Programme:
    """What was sent, how often each job has to run, and what has to hold when all is done.

    A method that sends is a feature; `check` knows how its jobs have to end.
    """

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self.app = app
        self.ledger = ledger
        #: Job -> how often it has to have started in the end.
        self.runs: Counter[str] = Counter()
        self._checks: list[Callable[[], None]] = []

    def check(self) -> None:
        """Wait until all of it is done, and look at its results; leaves an empty programme."""
        checks, self._checks = self._checks, []
        for then in checks:
            then()
        eventually(self._all_ran)

    def _all_ran(self) -> bool:
        started = self.ledger.runs()
        wrong = {job: started.get(job, 0) for job in {*started, *self.runs}}
        wrong = {job: runs for job, runs in wrong.items() if runs != self.runs[job]}
        if wrong:
            raise AssertionError(
                f"started {wrong}, not { ({job: self.runs[job] for job in wrong}) }"
            )
        return True

    def send(self, task: str, job: str, *args: Any, runs: int = 1, **options: Any) -> str:
        """One job, and its task id; `runs` is 0 for one that must not run."""
        if runs:
            self.runs[job] += runs
        return str(self.signature(task, job, *args).apply_async(**options).id)

    def signature(self, task: str, *args: Any, **kwargs: Any) -> Any:
        name = task if "." in task else f"features.{task}"
        return self.app.signature(name, args=args, kwargs=kwargs)

    def returns(self, task_id: str, value: Any) -> None:
        self._ends(task_id, "SUCCESS", lambda result: result == value)

    def fails(self, task_id: str, error: type[Exception]) -> None:
        self._ends(task_id, "FAILURE", lambda result: type(result).__name__ == error.__name__)

    def is_revoked(self, task_id: str) -> None:
        self._ends(task_id, "REVOKED", lambda result: True)

    def _ends(self, task_id: str, state: str, is_right: Callable[[Any], bool]) -> None:
        def then() -> None:
            meta = eventually(lambda: self._ended(task_id), message=f"{state} {task_id}")
            assert meta["status"] == state, meta
            assert is_right(meta["result"]), meta

        self._checks.append(then)

    def _ended(self, task_id: str) -> Any:
        meta = self.app.backend.get_task_meta(task_id)
        return meta if meta["status"] in READY_STATES else None

    # -- features of every pool

    def plain(self, names: list[str]) -> None:
        for name in names:
            self.returns(self.send("shop.note", name), name)

    def etas(self) -> None:
        """They wait in the worker, and do not count against its prefetch."""
        for name in ("eta0", "eta1", "eta2"):
            self.returns(self.send("shop.note", name, countdown=1.0), name)

    def expiring(self) -> None:
        past = datetime.now(timezone.utc) - timedelta(seconds=5)
        self.is_revoked(self.send("shop.note", "stale", runs=0, expires=past))
        # In time when it is received, too late when its turn comes.
        self.is_revoked(self.send("shop.note", "late", runs=0, countdown=1.0, expires=0.5))

    def revoked_eta(self) -> None:
        task_id = self.send("shop.note", "revoked eta", runs=0, countdown=1.0)
        self.app.control.revoke(task_id)
        self.is_revoked(task_id)

    def rejects(self) -> None:
        self.returns(self.send("reject", "requeued", True, runs=2), "requeued")
        self.send("reject", "rejected", False)
        self.send("ignore", "ignored")

    def retries(self) -> None:
        self.returns(self.send("retry", "retried", runs=3), "retried")
        self.returns(self.send("autoretry", "autoretried", runs=3), "autoretried")

    def failures(self) -> None:
        failed = self.send("shop.fail", "failed", link_error=self.signature("told"))
        self.runs[f"told {failed}"] += 1
        self.fails(failed, ValueError)
        self.fails(self.send("dropped", "dropped"), ValueError)

    def early_acks(self) -> None:
        self.returns(self.send("early", "early"), "early")

    def rated(self) -> None:
        names = [f"rated{n}" for n in range(4)]
        for name in names:
            self.returns(self.send("rated", name), name)

    def batches(self) -> None:
        for n in range(6):  # one full batch, and one that the clock flushes
            self.send("batch", f"batch{n}")

    def canvas(self) -> None:
        def add(*args: int) -> Any:
            return self.signature("shop.add", *args)

        self.returns(chain(add(1, 2), add(3)).delay().id, 6)
        for n, member in enumerate(group(add(n, n) for n in range(4)).delay().results):
            self.returns(member.id, 2 * n)
        self.runs["chord"] += 1
        body = self.signature("total", job="chord")
        self.returns(chord([add(n, 1) for n in range(4)])(body).id, 10)
        # A member fails: the body does not run, its errback does.
        self.runs["member"] += 1
        body = self.signature("total", job="no chord")
        body.link_error(self.signature("told"))
        broken = chord([add(1, 1), self.signature("shop.fail", "member")])(body).id
        self.runs[f"told {broken}"] += 1
        self.fails(broken, ChordError)

    # -- features of some pools

    def revoke(self, task_id: str, **how: Any) -> None:
        """By the worker's answer it is revoked, be it waiting, reserved or running."""
        self.app.control.revoke(task_id, reply=True, timeout=10, limit=1, **how)
        self.is_revoked(task_id)

    def soft_limit(self) -> None:
        self.returns(self.send("soft", "soft"), "soft")

    def hard_limit(self) -> None:
        self.fails(self.send("hard", "hard"), TimeLimitExceeded)

    def hard_limit_requeues(self, strikes: int) -> None:
        """With `acks_on_timeout=False` stock loops for ever; ours ends at the strike limit."""
        self.send("hard_again", "hard again", runs=strikes)
