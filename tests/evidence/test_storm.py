"""The storm of `python -m evidence storm`, for as long as the soak; ten minutes: `--minutes=10`."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections import Counter

import pytest

from evidence.storm import main

#: Where a run of CI keeps what is to be looked at later.
ARTIFACTS = "CI_ARTIFACTS_DIR"


def words(request: pytest.FixtureRequest, *, minutes: float) -> tuple[int, list[str]]:
    asked = request.config.getoption("--seed")
    seed = random.randrange(1_000_000) if asked is None else asked
    return seed, [f"--seed={seed}", f"--minutes={minutes}"]


@pytest.mark.timeout(0)
def test_nothing_is_unexplained(request, tmp_path):
    minutes = request.config.getoption("--minutes")
    seed, arguments = words(request, minutes=minutes)
    path = tmp_path / f"storm-{seed}.jsonl"
    code = main([*arguments, f"--history={path}"])
    if folder := os.environ.get(ARTIFACTS):
        shutil.copy(f"{path}.gz", folder)
    assert code == 0, f"seed {seed}; what the checker says is printed above"
    with gzip.open(f"{path}.gz", "rt") as text:
        lines = [json.loads(line) for line in text]
    harms = Counter(line["kind"] for line in lines if line["event"] == "harm")
    assert harms.total() >= minutes * 5, "too mild a storm"
    assert any(kind.startswith("pool_") for kind in harms), "no pool has changed"
    partly = {"latency", "packet loss", "little CPU", "idle connections closed"}
    assert partly <= harms.keys(), "no network, server or CPU has failed in part"
    sent = {line["kind"] for line in lines if line["event"] == "send"}
    assert sent >= {"odd", "callback", "pages", "slow", "again"}, "too few kinds of jobs"
    strikes = [line for line in lines if line["event"] == "strike"]
    killers = {line["job"] for line in lines if line.get("kind") == "poison"}
    ended = {line["job"] for line in lines if line.get("type") == "PoisonPill"}
    # The dead set is empty again where the server came back as it was before a job was sent.
    backs = [(line["back"], line["until"]) for line in lines if "back" in line]
    forgotten = {
        line["job"]
        for line in lines
        if line["event"] == "send"
        for back, until in backs
        if back <= line["until"] and line["at"] <= until
    }
    struck = {line["job"] for line in strikes}
    assert killers & ended - forgotten <= struck, "a strike is missing"
    assert all(line["worker"] for line in strikes), "a strike names no worker"


@pytest.mark.timeout(0)
def test_the_control_the_checker_finds_what_stock_does(request, tmp_path, capsys):
    _, arguments = words(request, minutes=0.5)
    code = main(
        [*arguments, "--side=stock", "--patience=45", f"--history={tmp_path / 'stock.jsonl'}"]
    )
    said = capsys.readouterr().out
    print(said)
    assert code == 1
    assert "UNEXPLAINED" in said
    assert '{"event": "send"' in said, "what befell those jobs is told"
