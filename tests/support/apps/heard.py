"""The shop, whose ledger has each task signal that its receivers hear of."""

from __future__ import annotations

from typing import Any

from celery import signals

from support.apps.shop import app, ledger

__all__ = ["app"]


def hear(signal: str) -> None:
    def heard(sender: Any = None, **_: Any) -> None:
        ledger().gave_up(sender.name, signal)

    getattr(signals, signal).connect(heard, weak=False)


for name in ("task_prerun", "task_postrun", "task_success", "task_failure"):
    hear(name)
