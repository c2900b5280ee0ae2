"""F3. The fixtures of celery[pytest]: workers embedded in one process, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.workers.worker import process_env

TESTS = """
import celery_superfetch
import pytest


@pytest.fixture
def celery_config():
    return {{"broker_url": {url!r}, "result_backend": {url!r}}}


@pytest.fixture
def celery_app(celery_app):
    if {superfetch}:
        celery_superfetch.install(celery_app)
    return celery_app


@pytest.mark.parametrize("turn", [1, 2])
def test_a_worker(celery_app, celery_worker, turn):
    @celery_app.task(shared=False)
    def double(number):
        return 2 * number

    celery_worker.reload()
    assert double.delay(turn).get(timeout=20) == 2 * turn
"""


def run(tests: str, directory: Path) -> str:
    """pytest's own words on ``tests``, which passed."""
    file = directory / "test_inside.py"
    file.write_text(tests)
    # pytest-celery's fixtures, which start containers, have the same names.
    plugins = ["-p", "no:celery", "-p", "no:pytest_celery", "-p", "celery.contrib.pytest"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-p", "no:cacheprovider", str(file)],
        cwd=directory,
        env=process_env({}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_embedded_workers_one_after_the_other_run_jobs(url, tmp_path):
    assert "2 passed" in run(TESTS.format(url=url, superfetch=True), tmp_path)


def test_stock_runs_them_as_well(url, tmp_path):
    assert "2 passed" in run(TESTS.format(url=url, superfetch=False), tmp_path)
