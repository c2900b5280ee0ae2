"""Each benchmark begins, and one command makes all figures of the README and of the docs.

A change of what a benchmark measures, or of its helpers, is noticed here.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.house import HERE

BENCHMARKS = HERE / "benchmarks"
PROGRAMS = sorted(
    path.stem for path in BENCHMARKS.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()
)
#: Pages whose figures one command makes; the last one names the benchmark of each README claim.
PAGES = ("README.md", "docs/inside/performance.md", "docs/contribute/claims.md")
#: They measure nothing.
NO_MEASUREMENT = {"all", "plots"}


@pytest.fixture
def driver(monkeypatch):
    """benchmarks/all.py, for a checkout without changes."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("all")
    monkeypatch.setattr(module, "commit_of_checkout", lambda: "a commit")
    return module


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_says_how_it_is_called(name):
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_none_was_forgotten():
    assert {"operate", "page", "worker", "peers"} <= set(PROGRAMS)


@pytest.mark.parametrize("page", PAGES)
def test_one_command_makes_each_figure_of_a_page(driver, page):
    named = set(re.findall(r"\b(\w+)\.py\b", (HERE / page).read_text())) & set(PROGRAMS)
    assert named - NO_MEASUREMENT <= {part.script for part in driver.PARTS}


def rows(results: Path) -> dict[str, dict]:
    return json.loads((results / "run.json").read_text())["parts"]


@pytest.mark.timeout(300)
def test_a_run_continues_and_names_the_parts_that_failed(driver, monkeypatch, tmp_path, capsys):
    shortest = min(driver.PARTS, key=lambda part: part.minutes)
    parts = (
        driver.Part("refused", "acks", "--no-such-option", "itself", 1),
        driver.Part("renamed", "acks", "--only no-such-case", "itself", 1),
        shortest,
    )
    monkeypatch.setattr(driver, "PARTS", parts)
    run = ["--results", str(tmp_path), "--wait", "0"]
    assert driver.main(run) == 1
    said = capsys.readouterr().out
    assert "refused failed: exit code 2" in said
    assert "unrecognized arguments: --no-such-option" in said, "the end of its output"
    assert "renamed failed: it measured nothing" in said
    assert {name: row["rc"] for name, row in rows(tmp_path).items()} == {
        "refused": 2,
        "renamed": 0,
        shortest.name: 0,
    }
    row = rows(tmp_path)[shortest.name]
    assert row["commit"] == "a commit"
    assert {"celery", "kombu", "redis", "python", "server", "cpus", "cpu"} <= row["machine"].keys()
    assert {"load_before", "quiet", "waited_s", "start", "end"} <= row.keys()
    assert (tmp_path / f"{shortest.name}.json").exists()
    assert not (tmp_path / "renamed.json").exists()

    assert driver.main(["--skip", "refused,renamed", *run]) == 0
    assert f"{shortest.name} (about {shortest.minutes:g} min" in (said := capsys.readouterr().out)
    assert "complete, skipped" in said
    assert rows(tmp_path)[shortest.name] == row

    monkeypatch.setattr(driver, "commit_of_checkout", lambda: "the next commit")
    assert driver.main(["--minutes", "0", *run]) == 0
    assert "complete, skipped" not in capsys.readouterr().out, "a control: it is of another commit"


@pytest.mark.timeout(300)
def test_a_part_that_hangs_is_interrupted(driver, monkeypatch, tmp_path, capsys):
    part = driver.Part("hung", "idle", "--only herd", "itself", 0)
    monkeypatch.setattr(driver, "PARTS", (part,))
    monkeypatch.setattr(driver, "LIMIT_EXTRA_MINUTES", 0.05)
    assert driver.main(["--results", str(tmp_path), "--wait", "0"]) == 1
    assert "hung failed: interrupted" in capsys.readouterr().out
    assert not (tmp_path / "hung.json").exists()
