"""A browser at the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from starlette.testclient import TestClient

from celery_superfetch.console.web import create_app, guesses
from support.forms import browser_at
from support.workers.bench import Bench


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    return make_app()


@pytest.fixture
def browse(app: Celery, bench: Bench) -> Callable[..., TestClient]:
    """`browse(read_only=False, token="...")`: a browser at the page."""

    def make(**options: Any) -> TestClient:
        return browser_at(create_app(app, **options))

    return make


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong token costs no second here."""
    monkeypatch.setattr(guesses, "WRONG_TOKEN_S", 0.0)
