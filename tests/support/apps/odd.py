"""Tasks that any arguments do for: what runs is named by a property that no test touches."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from support.apps.build import build_app
from support.servers.ledger import Ledger


def add_odd(app: Celery, ledger_url: str) -> None:
    """Register the tasks as `odd.<name>`."""

    @app.task(name="odd.any", shared=False, bind=True)
    def any_(self: Any, *args: Any, **kwargs: Any) -> None:
        Ledger(ledger_url).started(self.request.properties["odd"])

    app.task(name="odd.rated", shared=False, bind=True, rate_limit="1000/s")(any_.run.__func__)


app = build_app(os.environ)
add_odd(app, os.environ["LEDGER_URL"])
