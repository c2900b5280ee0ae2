"""Some sequences of tests/evidence/test_stateful.py, others at each run."""

from __future__ import annotations

import random

import pytest


# A failure takes some minutes to be told: first its sequence is made as short as can be.
@pytest.mark.timeout(900)
def test_whatever_happens_no_job_is_lost_and_no_innocent_is_killed(request, play):
    seed = request.config.getoption("--seed")
    number = random.randrange(2**32) if seed is None else seed
    print(f"--seed={number}")
    play(number, max_examples=30)
