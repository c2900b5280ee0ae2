"""Some of the crash points of `python -m evidence crash-points`, at another seed in each run."""

from __future__ import annotations

import random

import pytest

from evidence.crash_points import main
from evidence.crash_points.shapes import POOLS
from evidence.crash_points.verdict import by_point, trouble
from evidence.history import read

pytestmark = pytest.mark.timeout(0)


@pytest.mark.parametrize("pool", POOLS)
def test_whatever_command_is_the_last_the_workflow_ends_as_written_down(tmp_path, pool):
    seed = random.randrange(1_000_000)
    path = tmp_path / "points.jsonl"
    words = ["--minutes=0.3", f"--seed={seed}", "--lanes=1", "--pools", pool]
    assert main([*words, "--history", str(path)]) == 0, f"seed {seed}; see what it prints"


def test_the_control_without_steps_a_workflow_forks(tmp_path):
    """The child dies after it has published the next link, and before its job is settled."""
    path = tmp_path / "points.jsonl"
    words = ["--shapes", "chain link", "--harms", "child", "--pools", "prefork", "--lanes=1"]
    code = main([*words, "--moments", "after", "--without=handing_on", "--history", str(path)])
    assert code == 1
    points = by_point(read(path))
    assert any("forked: next ran 2 times" in trouble(lines) for lines in points.values())
