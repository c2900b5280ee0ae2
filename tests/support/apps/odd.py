"""Tasks that any arguments do for: what runs is named by a property that no test touches."""

from __future__ import annotations

from typing import Any

from support.apps.shop import app, ledger


@app.task(name="odd.any", shared=False, bind=True)
def any_(self: Any, *args: Any, **kwargs: Any) -> None:
    ledger().started(self.request.properties["odd"])


app.task(name="odd.rated", shared=False, bind=True, rate_limit="1000/s")(any_.run.__func__)
