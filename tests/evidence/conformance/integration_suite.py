"""Celery's integration tests: `install()` is called on the app that they and their worker share."""

from __future__ import annotations

from typing import Any

import celery.contrib.testing.app
import pytest
from celery import Celery
from plugin import OURS

import celery_superfetch

stock_app = celery.contrib.testing.app.TestApp


def installed_app(*args: Any, **kwargs: Any) -> Celery:
    app = stock_app(*args, **kwargs)
    celery_superfetch.install(app)
    return app


if OURS:
    celery.contrib.testing.app.TestApp = installed_app


@pytest.fixture(autouse=True)
def its_half(celery_session_app: Celery) -> None:
    """Neither half may test the other's transport by mistake."""
    with celery_session_app.connection_for_read() as connection:
        ours = connection.get_transport_cls().__module__.startswith("celery_superfetch.")
    assert ours == OURS
