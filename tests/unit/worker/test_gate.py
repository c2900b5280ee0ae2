"""A job begins in time, or says that it has not begun."""

from __future__ import annotations

import subprocess
import sys

import pytest

from celery_superfetch.model.start_permit import clock
from celery_superfetch.worker.outcomes import TooLate
from celery_superfetch.worker.run_job import run_job

CLAIM = ("", "", "", 0)  # none that could hand on a step

BEGIN = """
import sys
from celery_superfetch.worker.run_job import run_job
run_job(float(sys.argv[1]), ("", "", "", 0), print, "begun")
"""


def test_the_process_that_runs_it_looks_at_its_clock():
    """B. It asks nobody: past the time it says so, and has not begun."""
    ran: list[str] = []
    assert run_job(clock() + 60, CLAIM, ran.append, "in time") is None
    assert isinstance(run_job(clock(), CLAIM, ran.append, "too late"), TooLate)
    assert ran == ["in time"]


@pytest.mark.parametrize(("slept", "said"), [(0, "begun"), (3600, "")], ids=["control", "slept"])
def test_a_machine_that_slept_has_begun_too_late(slept, said):
    """A3. The monotonic clock stands still meanwhile; Linux can show it to one process alone."""
    machine = ["unshare", "--time", "--boottime", str(slept)]
    try:
        subprocess.run([*machine, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"needs a time namespace: {exc}")
    argv = [*machine, sys.executable, "-c", BEGIN, str(clock() + 60)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == said
