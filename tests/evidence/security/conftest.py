"""Pages that are served, as an attacker finds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from support.visitors import Page


@pytest.fixture
def serve(
    env: Callable[..., dict[str, str]], keep: Callable[[Any], Any], tmp_path: Path
) -> Callable[..., Page]:
    """`serve("--allow-changes", token=None)`: the page, in a process of its own."""

    def start(*options: str, **settings: Any) -> Page:
        page: Page = keep(Page(env(), tmp_path, *options, **settings))
        return page.wait_ready()

    return start


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    return make_app()
