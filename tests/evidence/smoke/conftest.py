"""`pytest tests/evidence/smoke`: on local processes; with `--nodes=docker`: in containers."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("pytest_celery"):
    from support.smoke.fixtures import *  # noqa: F403


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nodes",
        choices=("process", "docker"),
        default="process",
        help="tests/evidence/smoke: what its broker, backend and worker are made of",
    )
