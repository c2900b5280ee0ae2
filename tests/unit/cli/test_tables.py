"""Tables on a terminal of 80 columns, and on a pipe."""

from __future__ import annotations

import pytest

from celery_superfetch.cli.tables import Tables
from celery_superfetch.console.health import judged
from celery_superfetch.console.links import RUNBOOK_URL
from support.well import WELL

NODE = "celery@shop-worker-7d9f8b6c5d-x2x9z"
REASON = "pool child lost (Worker exited prematurely: signal 9 (SIGKILL) Job: 2.)"


@pytest.fixture
def tables() -> Tables:
    """On a terminal; what it prints is in `printed`."""
    found = Tables(no_color=True)
    found.wide, found.width = False, 80
    found.printed = []
    found.say = found.printed.append
    return found


def test_a_narrow_terminal_breaks_no_word_and_goes_without_what_may_be_spared(tables):
    row = {"node": NODE, "died": "14 min ago", "reason": REASON, "number": 7, "args": "x" * 30}
    titles = ["Node", "Died", "Reason", "Number", "Args"]
    tables.table(titles, [row, {**row, "reason": None}], spare=["Args", "Number"])
    lines = tables.printed
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["Node", "Died", "Reason", "Number"]
    words = " ".join(lines).split()
    assert words.count(NODE) == words.count("7") == 2
    assert {*REASON.split()} <= {*words}
    assert "14 min ago" in lines[1]


def test_a_word_that_is_longer_than_the_terminal_is_broken_and_not_cut(tables):
    tables.table(["Node", "Args"], [{"node": NODE, "args": "x" * 200}])
    lines = tables.printed
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("x") == 200 + NODE.count("x")


def test_a_terminal_on_which_nothing_fits_gets_what_there_is(tables):
    tables.width = 12
    titles = ["Node", "State", "Heard", "Running", "Reserved", "Reason"]
    tables.table(titles, [{"node": NODE, "reason": REASON}])
    first = "".join(line[:1].strip() for line in tables.printed)
    assert first == f"Node{NODE}"


def test_all_rows_on_one_line_each_where_that_is_asked_for(tables):
    row = {"node": NODE, "reason": REASON * 5}
    tables.table(["Node", "Reason"], [row] * 30, most=20)
    assert tables.printed[-1] == "and 10 more: --wide shows all"
    tables.printed.clear()
    tables.widen()
    tables.table(["Node", "Reason"], [row] * 30, spare=["Reason"], most=20)
    assert sum(REASON * 5 in line for line in tables.printed) == 30


def test_the_status_of_many_owners_begins_with_what_is_wrong(tables):
    owner = {**WELL["owners"][0], "running": 1, "reserved": 2, "app": "shop"}
    owners = [{**owner, "node": f"{NODE}{number}"} for number in range(50)]
    owners[33] = {**owners[33], "heartbeat_age": 3 * 3600.0, "state": "silent"}
    death = {"at": "2026-11-23T03:00:00.000+00:00", "node": NODE, "owner": "vm|7|aa"}
    death |= {"recovered": 3, "killed": 0, "state": "running", "reason": REASON}
    found = {
        **WELL,
        "server_time": "2026-11-23T03:14:30.000+00:00",
        "owners": owners,
        "tombstones": {"owners": 1, "in_flight": 0},
        "deaths": [death],
        "counters": {"recovered": 3},
        "queues": [{**row, "priority": at} for at, row in enumerate(WELL["queues"])],
        "last_pass": {
            "age": 4.0,
            "by": NODE,
            "owners": 50,
            "recovered": 0,
            "killed": 0,
            "errors": 0,
            "seconds": 0.01,
        },
    }
    judged(found).print(tables, wide=False)
    lines = tables.printed
    assert max(len(line) for line in lines if RUNBOOK_URL not in line) <= 80
    assert lines[0].startswith(f"Critical: worker {NODE}33 on vm is silent (no")
    text = "\n".join(lines)
    assert "and 30 more: --wide shows all" in text
    assert "14 min ago" in text
    [queue] = (line.split() for line in lines if line.startswith("mail"))
    assert queue == ["mail", "40", "0", "0", "-", "9", "s", "1"]
