"""A word to monitors (Flower, `celery events`) from where a notice of a killed job runs."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.utils.log import get_logger

logger = get_logger(__name__)

TIMEOUT = 2.0  # seconds to wait for the broker


def tell_monitors(app: Celery, type: str, **fields: Any) -> None:
    """Send an event; never raises: monitors are not worth more than a line in the log."""
    task = app.current_worker_task
    try:
        with app.connection_for_write() as connection:
            if connection.get_transport_cls().driver_type == "redis":
                waits = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), TIMEOUT)
                connection.transport_options.update(waits)
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            name = task and task.request.hostname
            dispatcher = app.events.Dispatcher(connection, name, buffer_while_offline=False)
            dispatcher.send(type, **fields)
    except Exception as exc:
        logger.warning("Monitors miss event %s (%s). Jobs go on.", type, exc)
