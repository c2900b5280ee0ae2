"""What a monitor does: it hears the events of a broker while others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery


@contextmanager
def monitor(app: Celery, hear: Callable[[dict[str, Any]], object], of: str = "*") -> Iterator[None]:
    """Call `hear` with each event, or with those of one type."""
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={of: hear})
        thread = threading.Thread(target=receiver.capture, kwargs={"limit": None, "wakeup": False})
        thread.start()
        try:
            yield
        finally:
            receiver.should_stop = True
            thread.join()
