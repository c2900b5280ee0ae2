"""The shop with tasks that raise, reject and return objects of which nothing is safe, and with a
request class that raises while its jobs are settled."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from celery.worker.request import Request

from support.apps.shop import app, ledger
from support.workers.untrusted import RAISED, OneWay, OnlyInChild, Unprintable, Unreadable


@app.task(name="untrusted.raises", shared=False)
def raises(kind: str, job: str) -> NoReturn:
    ledger().started(job)
    raise RAISED[kind][0]()


@app.task(name="untrusted.exits", shared=False)
def exits(job: str) -> NoReturn:
    """What billiard has for this sends the status to the worker."""
    ledger().started(job)
    sys.exit(OneWay())


@app.task(name="untrusted.retries", shared=False, bind=True, max_retries=1)
def retries(self: Any, job: str) -> str:
    """Ask for one retry, for a reason that cannot be unpickled."""
    ledger().started(job)
    if self.request.retries:
        return job
    raise self.retry(exc=OnlyInChild(), countdown=0)


@app.task(name="untrusted.returns", shared=False)
def returns(job: str) -> Any:
    ledger().started(job)
    return Unreadable()


class FailingRequest(Request):
    """A request class of the user, each of whose callbacks may raise."""

    def _fails(self, where: str) -> None:
        how, job = self.args
        if how == where or (how == f"{where} once" and ledger().first(f"{where} {job}")):
            raise Unprintable

    def on_accepted(self, *args: Any, **kwargs: Any) -> Any:
        self._fails("on_accepted")
        return super().on_accepted(*args, **kwargs)

    def on_failure(self, *args: Any, **kwargs: Any) -> Any:
        self._fails("on_failure")
        return super().on_failure(*args, **kwargs)


FAILING = f"{FailingRequest.__module__}:{FailingRequest.__name__}"


@app.task(name="untrusted.settles", shared=False, Request=FAILING)
def settles(how: str, job: str) -> str:
    book = ledger()
    book.started(job)
    if how.startswith("on_failure"):
        raise ValueError("for on_failure")
    book.finished(job)
    return job


app.task(name="untrusted.settles_early", shared=False, Request=FAILING, acks_late=False)(
    settles.run
)
