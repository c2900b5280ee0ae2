"""The document of `status --json`: bounded, and what it leaves out is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_superfetch.console.document import FINDINGS_MOST, OWNER_LISTS_MOST, QUEUES_MOST
from celery_superfetch.console.health import judged
from support.well import WELL

MANY = 2_000
OWNERS = 200


def fleet(consumers: int) -> dict[str, Any]:
    """Many queues with a job each, four lists a queue, and workers that name a hundred of them."""
    row = {**WELL["queues"][0], "priority": 0, "length": 1}
    names = [f"queue-{number:04}" for number in range(MANY)]
    steps = ["", "\x06\x163", "\x06\x166", "\x06\x169"]
    queues = [
        {**row, "queue": name, "list": name + step, "length": int(not step), "consumers": consumers}
        for name in names
        for step in steps
    ]
    lists = [row["list"] for row in queues]
    owner = {**WELL["owners"][0], "unconsumed": []}
    owners = [
        {**owner, "owner": f"vm|{n}|aa", "queues": lists[n * 40 % MANY :][:400]}
        for n in range(OWNERS)
    ]
    return {**WELL, "queues": queues, "owners": owners}


@pytest.mark.parametrize("consumers", [1, 0])
def test_what_makes_it_long_is_left_out_and_counted(consumers):
    judgement = judged(fleet(consumers))
    short, every = judgement.document(wide=False), judgement.document(wide=True)
    assert len(short["queues"]) == QUEUES_MOST
    assert short["queues_left_out"] == MANY - QUEUES_MOST
    assert short["empty_lists_left_out"] == 3 * MANY
    for owner in short["owners"]:
        assert len(owner["queues"]) == OWNER_LISTS_MOST
        assert owner["queues_left_out"] == 100 - OWNER_LISTS_MOST
    found = len(every["findings"])
    assert len(short["findings"]) == min(found, FINDINGS_MOST)
    assert short["findings_left_out"] == max(0, found - FINDINGS_MOST)
    assert (len(every["queues"]), len(every["owners"][0]["queues"])) == (4 * MANY, 400)
    assert not [name for name in every if name.endswith("left_out")], "all of it is there"
    sizes = [len(json.dumps(document, indent=2)) for document in (short, every)]
    assert sizes[0] < sizes[1] / 5


def test_the_queues_that_need_a_worker_are_kept_and_then_the_fullest():
    overview = fleet(1)
    for row in overview["queues"]:
        row["consumers"] = int(row["queue"] != "queue-1999")
        row["length"] = 7 if row["list"] == "queue-1500" else row["length"]
    names = [row["list"] for row in judged(overview).document(wide=False)["queues"]]
    assert {"queue-1999", "queue-1500", "queue-0000"} <= {*names}
    assert names == sorted(names), "in the order of --wide"


def test_of_few_queues_nothing_is_left_out():
    document = judged({**WELL, "owners": fleet(1)["owners"][:1]}).document(wide=False)
    assert document["queues"] == WELL["queues"]
    left_out = {name: count for name, count in document.items() if name.endswith("left_out")}
    assert left_out == {"findings_left_out": 0, "queues_left_out": 0, "empty_lists_left_out": 0}
