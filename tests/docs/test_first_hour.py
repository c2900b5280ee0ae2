"""docs/contribute/first_hour.md: what it says of the files, and its exercises as readers do them:
in a copy of the checkout the answers are right, and each mistake turns its test red."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from support.house import HERE

PAGE = (HERE / "docs" / "contribute" / "first_hour.md").read_text()
#: Heading -> the text below, of each exercise.
EXERCISES = dict(re.findall(r"(?ms)^### (.*?)\n(.*?)(?=^### |\Z)", PAGE))
VERDICT, SCRIPT, OPTION = EXERCISES
COPIED = ("celery_superfetch", "tests", "docs", "setup.cfg", "pyproject.toml")

RULE, REQUEUE = "celery_superfetch/model/verdict.py", "celery_superfetch/store/lua/requeue.lua"
OPTIONS = "celery_superfetch/model/config.py"
FIRST = "    if evidence.superseded:\n"
ROW = "    if evidence.stopping and silent >= evidence.owner_ttl / 2:\n        return Reason.LEFT\n"
COUNTS = "('HINCRBY', stats, 'requeued', total)"
TEXT = '\n    """A pass moves at most so many jobs of a dead worker at once."""'

#: How exercises are done wrongly: which files of the answer are left out, what is changed in it
#: (file, old text, new text), and the tests that turn red by that, one for each mistake.
WRONG: dict[str, tuple[str, set[str], list[tuple[str, str, str]], list[str]]] = {
    "a row without a test": (
        VERDICT,
        {"tests/unit/model/test_verdict.py"},
        [],
        ["test_every_reason_can_be_reached_and_reads_as_a_clause"],
    ),
    "a row that stands first, and whose reason is no death": (
        VERDICT,
        set(),
        [(RULE, FIRST, ROW + FIRST), (RULE, "    Reason.LEFT,\n", "")],
        [
            "test_an_owner_is_not_dead_when[told to stop, and frozen",
            "test_an_owner_is_dead_when[elsewhere, told to stop",
        ],
    ),
    "a refusal after the first write": (
        SCRIPT,
        {REQUEUE},
        [(REQUEUE, f"redis.pcall{COUNTS}", f"redis.call{COUNTS}")],
        [
            "test_what_holds_something_else_is_found_before_anything_moves[requeue-string]",
            "test_a_requeue_that_cannot_be_counted_moves_nothing",
        ],
    ),
    "an option without a text, a place on its page and a default in its test": (
        OPTION,
        {"docs/reference/options.md", "tests/unit/model/test_config.py"},
        [(OPTIONS, TEXT, "")],
        [
            "test_every_option_has_a_text_and_a_unit",
            "test_every_option_is_shown_once",
            "test_the_defaults_are_the_documented_ones",
        ],
    ),
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in COPIED:
        if (HERE / name).is_dir():
            skipped = shutil.ignore_patterns("__pycache__", "_build")
            shutil.copytree(HERE / name, tmp_path / name, ignore=skipped)
        else:
            shutil.copy(HERE / name, tmp_path)
    return tmp_path


def write(checkout: Path, file: str, old: str, new: str) -> None:
    path = checkout / file
    text = path.read_text()
    assert text.count(old) == 1, f"{file} has it once:\n{old}"
    path.write_text(text.replace(old, new))


def answer(checkout: Path, title: str, left_out: Collection[str] = ()) -> None:
    """Write the answer of an exercise."""
    [diff] = re.findall(r"(?ms)^```diff\n(.*?)^```", EXERCISES[title])
    for part in diff.split("+++ ")[1:]:
        file, *hunks = part.split("@@\n")
        for hunk in hunks if file.strip() not in left_out else ():
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(li[1:] or li for li in lines if li[0] != kind) for kind in "+-")
            write(checkout, file.strip(), old, new)


def run(checkout: Path, title: str) -> tuple[int, str]:
    """The tests of an exercise: exit status, and what pytest said."""
    [words] = re.findall(r"Run `python -m pytest ([^`]+)`", EXERCISES[title])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *words.split()],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("title", EXERCISES)
def test_the_answer_is_right(checkout, title):
    answer(checkout, title)
    status, said = run(checkout, title)
    assert status == 0, said


@pytest.mark.parametrize("wrong", WRONG)
def test_each_mistake_turns_its_test_red(checkout, wrong):
    title, left_out, changes, red = WRONG[wrong]
    answer(checkout, title, left_out)
    for change in changes:
        write(checkout, *change)
    status, said = run(checkout, title)
    assert status == 1, said
    for test in red:
        assert re.search(rf"^FAILED .*{re.escape(test)}", said, re.MULTILINE), said


def test_the_files_are_as_long_as_the_page_says():
    rows = re.findall(r"^\| `(\S+)` \| (\d+) \| \S", PAGE, re.MULTILINE)
    assert len(rows) >= 12
    for name, said in rows:
        lines = len((HERE / name).read_text().splitlines())
        assert abs(lines - int(said)) <= 10 + int(said) // 5, f"{name} has {lines} lines"
