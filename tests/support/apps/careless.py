"""The shop, without one of the things that CARELESS names: what each is there for."""

from __future__ import annotations

import os
from typing import Any

from celery_superfetch.model.job import Job
from celery_superfetch.owner.in_flight.acks import Acks, Answers
from celery_superfetch.owner.in_flight.in_flight import InFlight
from celery_superfetch.owner.in_flight.jobs import Move
from celery_superfetch.owner.in_flight.starts import Starts
from celery_superfetch.transport.fetch.probation import Probation
from celery_superfetch.worker.reception import Reception
from support.apps.build import build_app

app = build_app(os.environ)


def forget_lost_claims() -> None:
    """Claims whose reply was lost are not looked for."""

    def reconcile(self: InFlight, *_: Any) -> int:
        self.doubt = False
        return 0

    InFlight.reconcile = reconcile  # type: ignore[method-assign]


def forget_unconfirmed_acks() -> None:
    """Acks that broke off are not sent again."""
    send = Acks.send

    def careless(self: Acks, *args: Any, **options: Any) -> Answers:
        try:
            return send(self, *args, **options)
        except BaseException:
            self.waiting.clear()
            raise

    Acks.send = careless  # type: ignore[method-assign]


def forget_what_runs() -> None:
    """A channel that closes gives back whatever it has delivered."""
    start = Starts.start

    def forgetful(self: Starts, job: Job, record: str = "") -> float:
        until = start(self, job, record)
        self.jobs.move(job, Move.END)
        return until

    Starts.start = forgetful  # type: ignore[method-assign]


def forget_who_rests() -> None:
    """Whoever is busy comes to rest for a suspect, and for as long as it takes."""
    Probation._ask = lambda self, waiting: bool(waiting)  # type: ignore[method-assign]


def receive_whatever_comes() -> None:
    """What Celery raises is raised, and a job that another app has spared runs."""
    Reception.refuses = lambda *_, **__: False  # type: ignore[method-assign]
    Reception.kills = lambda *_: False  # type: ignore[method-assign]


{
    "reception": receive_whatever_comes,
    "claims": forget_lost_claims,
    "acks": forget_unconfirmed_acks,
    "running": forget_what_runs,
    "rests": forget_who_rests,
}[os.environ["CARELESS"]]()
