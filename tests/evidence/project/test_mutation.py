"""What the mutation run relies on: a changed line asks the tests that run it, and those that hang
end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evidence import ROOT
from evidence.mutants import in_python
from evidence.mutation import MOST_S, REST_S, _rounds
from evidence.reach import Reached, running, within
from evidence.warm import NO_END, Warm

CODE = """\
def double(number):
    \"\"\"Double it.\"\"\"
    # A comment counts as a line.
    doubled = number + number
    return doubled

def halved(number, by=2):
    return number / by
"""
TESTS = """\
import threading
import time
import code_of_test

def test_double():
    assert code_of_test.double(1) == 2

def test_in_a_thread():
    thread = threading.Thread(target=code_of_test.double, args=(1,))
    thread.start()
    thread.join()

def test_nothing():
    pass
"""
FILE = "code_of_test.py"


@pytest.fixture
def warm(tmp_path: Path, monkeypatch) -> Iterator[Warm]:
    (tmp_path / FILE).write_text(CODE)
    (tmp_path / "test_code.py").write_text(TESTS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with Warm(tmp_path, []) as warm:
        yield warm


def test_each_test_tells_the_lines_that_it_runs(warm):
    reached = warm.reach(["test_code.py"], [FILE])
    assert [(one.test.partition("::")[2], one.lines.get(FILE)) for one in reached] == [
        ("test_double", [4, 5]),
        ("test_in_a_thread", [4, 5]),
        ("test_nothing", None),
    ]


def test_a_change_is_found_and_what_hangs_ends(warm, tmp_path):
    [first, *_] = [change for change in in_python(CODE) if change.line == 4]
    (tmp_path / FILE).write_text(first.text)
    assert warm.run(["test_code.py"]) == "test_code.py::test_double"
    (tmp_path / FILE).write_text("import time\ntime.sleep(60)\n")
    assert warm.run(["test_code.py"], limit=1.0) == NO_END
    (tmp_path / FILE).write_text(CODE)
    assert warm.run(["test_code.py"]) == ""


def test_a_test_that_fails_although_nothing_was_changed_is_left_out(warm, tmp_path, capsys):
    with (tmp_path / "test_code.py").open("a") as file:
        file.write("\ndef test_that_fails():\n    assert code_of_test.double(1) == 3\n")
    assert len(warm.reach(["test_code.py"], [FILE])) == 3
    assert "left out" in capsys.readouterr().out
    (tmp_path / FILE).write_text("undefined")
    with pytest.raises(RuntimeError, match="no test of"):
        warm.reach(["test_code.py"], [FILE])


def test_each_change_has_its_own_line_and_function():
    dropped, *_, by = in_python(CODE)
    assert (dropped.line, dropped.old, dropped.new) == (4, "doubled = number + number", "pass")
    assert dropped.span == range(1, 6)
    assert (by.line, by.span) == (7, range(7, 9))


def test_the_shortest_tests_of_a_line_come_first_and_no_more_than_fit():
    reached = [
        Reached("slow", 9.0, {FILE: [4, 5]}),
        Reached("other", 1.0, {FILE: [8]}),
        Reached("quick", 2.0, {FILE: [4, 5]}),
    ]
    span = range(1, 6)

    def names(line: int, most_s: float) -> list[str]:
        return [one.test for one in within(running(reached, FILE, line, span), most_s)]

    assert names(4, 100.0) == ["quick", "slow"]
    assert names(4, 5.0) == ["quick"]
    assert names(4, 1.0) == ["quick"]  # one is asked in any case
    assert names(1, 100.0) == ["quick", "slow"]  # a line that runs at the import
    assert within([], 1.0) == []


def test_where_the_shortest_tests_find_nothing_the_longer_ones_are_asked():
    """Without them a change counted as not found although a test would have found it."""
    seconds = {"a": 1.0, "b": 2.0, "c": MOST_S, "d": REST_S - MOST_S, "e": REST_S}
    tests = [Reached(name, duration, {}) for name, duration in seconds.items()]
    killers = ["d", "b"]
    assert [names for names, _ in _rounds(tests, killers)] == [["b"], ["a"], ["c", "d"]]
    assert [names for names, _ in _rounds(tests[:2], killers)] == [["b"], ["a"], []]
    assert all(limit > sum(map(seconds.get, names)) for names, limit in _rounds(tests, killers))
