"""The shop, without one of the things that CARELESS names: what each is there for."""

from __future__ import annotations

import os
from typing import Any

from apps.build import build_app
from celery_superfetch import worker
from celery_superfetch.acks import Acks, Answers
from celery_superfetch.in_flight import InFlight

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
            self._waiting.clear()
            raise

    Acks.send = careless  # type: ignore[method-assign]


def forget_what_runs() -> None:
    """A channel that closes gives back whatever it has delivered."""
    worker._running = list
    worker.guard_starts = lambda pool: None


{
    "claims": forget_lost_claims,
    "acks": forget_unconfirmed_acks,
    "running": forget_what_runs,
}[os.environ["CARELESS"]]()
