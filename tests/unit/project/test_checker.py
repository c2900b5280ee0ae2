"""The checker of storms, on forged histories: each verdict is given once, and never for nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from evidence import checker

Line = dict[str, Any]
REST: Line = {"event": "rest", "at": 999}


def send(steps: str = "run", at: float = 0, job: str = "j", **facts: Any) -> Line:
    kind = facts.pop("kind", "plain")
    return {"event": "send", "job": job, "kind": kind, "steps": steps.split(), "at": at, **facts}


def ran(
    at: float,
    step: str = "run",
    job: str = "j",
    worker: str = "w1",
    message: str = "",
    cut: bool = False,
    **given: Any,
) -> list[Line]:
    """A run of a tenth of a second; ``cut``: it has no end."""
    run = f"{job} {step} {at} {worker}"
    place = {"worker": worker, "pid": 7, "message": message or f"{job} {step}"}
    start = {"event": "start", "job": job, "step": step, "run": run, "at": at, **place, **given}
    return [start] if cut else [start, {"event": "end", "job": job, "run": run, "at": at + 0.1}]


def killed(at: float, *workers: str, until: float | None = None, **facts: Any) -> Line:
    place = {"workers": workers or ("w1",), "until": at if until is None else until}
    return {"event": "harm", "kind": "kill -9", "at": at, **place, **facts}


def failed(step: str = "run", type: str = "PoisonPill") -> Line:
    return {"event": "outcome", "at": 998, "job": "j", "step": step, "state": "FAILURE"} | {
        "type": type
    }


CHORD = {"steps": "p0 p1 body", "parts": 2, "values": ["p0", "p1"], "kind": "chord"}
PARTS = [*ran(1, "p0"), *ran(1, "p1")]
PILL = [ran(at, cut=True)[0] for at in (1, 20, 40)]
ORDER = [send(at=1, order="q"), send(at=2, order="q", job="k")]

#: Verdict -> what a history must have to get it, and what it has beside where it is innocent.
FORGED: dict[str, list[tuple[list[Line], list[Line]]]] = {
    "lost": [([send(), *ran(1, cut=True), killed(1)], ran(20, worker="w2"))],
    "stuck": [
        ([send("a b"), *ran(1, "a")], ran(2, "b")),
        ([send(**CHORD), *PARTS], ran(2, "body", given=["p1", "p0"])),
        ([send(pill=3), *PILL], [failed()]),
    ],
    "twice": [
        ([send(), *ran(1), *ran(5, worker="w2")], [killed(3)]),
        ([send(), *ran(1), *ran(5, worker="w2")], [killed(0, until=2, pid=7)]),
        ([send(), *ran(7), *ran(11, worker="w2")], [killed(1, until=2, cut=True)]),
    ],
    "out of order": [([*ORDER, *ran(5), *ran(3, job="k")], [killed(4, "w9")])],
    "innocent killed": [([send(), *PILL, killed(2), killed(21), failed()], [killed(41)])],
    "pill": [([send(pill=2), *PILL, failed()], [killed(21, kind="freeze")])],
}
#: What nothing that happens beside can excuse.
NEVER: dict[str, list[Line]] = {
    "forked": [
        send("a b"),
        *ran(1, "a", cut=True),
        *ran(3, "a", worker="w2"),
        *ran(3, "b", message="first"),
        *ran(4, "b", message="second"),
        killed(2),
    ],
    "wrong values": [send(**CHORD), *PARTS, *ran(2, "body", given=["p0", "p0"]), killed(1)],
    "early": [send(due=10), *ran(9.9), killed(9)],
    "failed": [send(), *ran(1), failed(type="TypeError")],
}


def verdicts(lines: Iterable[Line]) -> list[str]:
    troubles = checker.judge(checker.load([*lines, REST]))
    return [verdict for verdict, texts in troubles.items() if texts]


GUILTY = [(verdict, lines) for verdict, cases in FORGED.items() for lines, _ in cases]
INNOCENTS = [[*lines, *more] for cases in FORGED.values() for lines, more in cases]


@pytest.mark.parametrize(("verdict", "lines"), [*GUILTY, *NEVER.items()])
def test_each_trouble_is_called_by_its_name(verdict, lines):
    assert verdicts(lines) == [verdict]


@pytest.mark.parametrize("lines", INNOCENTS)
def test_with_a_reason_there_is_no_trouble(lines):
    assert verdicts(lines) == []


def test_all_verdicts_are_tried():
    assert {verdict for verdict, _ in GUILTY} | set(NEVER) == set(checker.VERDICTS)


@pytest.mark.parametrize(
    "harm",
    [
        killed(3, "w2"),
        killed(3, pid=8),
        killed(0, until=0.5),
        killed(0.9 - checker.CUT_OFF, cut=True),
        killed(1.1 + checker.UNSETTLED + 1),
    ],
    ids=["of another worker", "of another process", "before it", "long before it", "long after it"],
)
def test_a_harm_elsewhere_excuses_nothing(harm):
    late = harm["at"] + 1
    assert verdicts([send(), *ran(1), *ran(max(late, 2), worker="w3"), harm]) == ["twice"]


def test_a_pill_is_a_harm_to_its_company_and_none_to_itself():
    beside = [send(job="k"), *ran(1.01, job="k", cut=True), *ran(9, job="k", worker="w2")]
    once = [send(pill=1), *ran(1, cut=True), failed()]
    assert verdicts([*once, *beside]) == []
    assert verdicts([*once, *ran(9, cut=True), *beside]) == ["pill"]


def test_a_body_that_never_ran_has_failed_with_its_part():
    chord = [send(**CHORD), *ran(1, "p0"), killed(1), failed("p1"), failed("body", "ChordError")]
    assert verdicts(chord) == ["innocent killed"]


def test_what_was_given_up_hands_on_nothing():
    killed_as_they_ended = [*ran(1, "a"), *ran(20, "a"), *ran(40, "a")]
    harms = [killed(1.1), killed(20.1), killed(40.1)]
    chain = [send("a b c"), *killed_as_they_ended, *harms]
    assert verdicts([*chain, failed("a")]) == []
    assert verdicts(chain) == ["stuck"]
    # Parts begin together: none of them waits for another.
    parts = [*ran(1, "p0"), *ran(20, "p0"), *ran(40, "p0"), *harms, failed("p0")]
    assert verdicts([send(**CHORD), *parts]) == ["lost"]


def test_what_may_not_have_been_sent_is_not_missed():
    assert verdicts([send(doubt="TimeoutError")]) == []
    assert verdicts([send(doubt="TimeoutError"), *ran(1, cut=True)]) == ["lost"]
    assert verdicts([send(**CHORD, doubt="TimeoutError"), *ran(1, "p0")]) == []
    assert verdicts([send(**CHORD, doubt="TimeoutError"), *PARTS]) == ["stuck"]


def test_it_runs_by_itself_and_says_where_a_history_ends_too_soon(tmp_path):
    path = tmp_path / "history.jsonl"
    for rest, code, verdict in (([REST], 0, "GOOD"), ([], 1, "NOT WHOLE")):
        lines = [send(), *ran(1), *rest]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = subprocess.run(
            [sys.executable, "-I", "-S", checker.__file__, path], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (code, "")
        assert done.stdout.splitlines()[-1].startswith(verdict)


def test_histories_add_up(tmp_path, capsys):
    paths = [str(tmp_path / f"{name}.jsonl") for name in ("good", "bad")]
    for path, at in zip(paths, ([1], [1, 5]), strict=True):
        lines = [send(), *(line for began in at for line in ran(began)), REST]
        Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert checker.main(*paths[:1]) == 0
    assert checker.main(*paths) == 1
    assert (
        "2 histories, 1 of them good: 2 sent, 2 steps, 3 runs, 0 harms" in capsys.readouterr().out
    )


def test_it_is_short():
    assert len(Path(checker.__file__).read_text().splitlines()) < 300
