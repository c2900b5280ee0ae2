"""Each benchmark begins: a change of what it measures, or of its helpers, is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
PROGRAMS = sorted(
    path.stem for path in BENCHMARKS.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_says_how_it_is_called(name):
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_none_was_forgotten():
    assert {"operate", "page", "worker", "peers"} <= set(PROGRAMS)
