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


def hand(part: str, at: float = 2, run: str = "j run 1 w1", **facts: Any) -> Line:
    """That the run of `ran(1)` has published a part by hand."""
    return {"event": "hand", "job": "j", "run": run, "part": part, "at": at, **facts}


def arrived(part: str, at: float = 3, message: str = "", **facts: Any) -> list[Line]:
    """A run of what was published so."""
    origin = {"by": "j run 1 w1", "part": part}
    return ran(at, message=message or f"by hand {part}", **origin, **facts)


def placed(worker: str = "w1", place: str = "a", at: float = 0, queue: str = "q") -> Line:
    return {"event": "worker", "worker": worker, "place": place, "queue": queue, "at": at}


def answered(state: str) -> Line:
    return {"event": "outcome", "at": 998, "job": "j", "step": "run", "state": state}


def struck(at: float, worker: str = "w1", step: str = "run", job: str = "j") -> Line:
    """The runner has counted the loss of a worker against a job that is given up."""
    return {"event": "strike", "at": 998, "job": job, "step": step, "struck": at} | {
        "worker": worker
    }


def failed(step: str = "run", type: str = "PoisonPill") -> Line:
    return {"event": "outcome", "at": 998, "job": "j", "step": step, "state": "FAILURE"} | {
        "type": type
    }


CHORD = {"steps": "p0 p1 body", "parts": 2, "values": ["p0", "p1"], "kind": "chord"}
PARTS = [*ran(1, "p0"), *ran(1, "p1")]
PILL = [ran(at, cut=True)[0] for at in (1, 20, 40)]
ORDER = [send(at=1, order="q"), send(at=2, order="q", job="k")]

ODD = {"ends": ["FAILURE"], "kind": "odd"}
FORGOTTEN = {"ends": ["PENDING", "FAILURE"], "kind": "odd"}
STOPS = {"pill": 3, "stops": "QUIT", "kind": "stopper"}
#: A job that begins as one does that was sent 100 s later.
OVERTAKEN = [send(queue="c"), send(job="k", at=100, queue="c"), *ran(101, job="k", worker="w2")]
#: One that was told to shrink its pool, which excuses nothing.
SHRUNK: Line = {"event": "harm", "kind": "pool_shrink", "at": 3, "until": 3, "workers": []}
#: A process ends, of a worker that goes on.
UNLOADED: Line = {"event": "unload", "worker": "w1", "pid": 9, "at": 5}
#: It ran a failure notification, which the load did not send.
WORKED: Line = {"event": "work", "worker": "w1", "pid": 9, "task": "announce", "at": 4}
#: A place that has work: each of these jobs runs elsewhere at once.
BUSY = [
    line
    for at in range(checker.BUSY + 1)
    for line in (
        send(job=f"k{at}", at=at * 20, queue="q"),
        *ran(at * 20 + 1, job=f"k{at}", worker="w2"),
    )
]

#: Verdict -> what a history must have to get it, and what it has beside where it is innocent.
FORGED: dict[str, list[tuple[list[Line], list[Line]]]] = {
    "lost": [
        ([send(), *ran(1, cut=True), killed(1)], ran(20, worker="w2")),
        ([send(), *ran(1), hand("0"), hand("1"), *arrived("0")], arrived("1")),
        # Of a run that was cut short, too: the server had confirmed it.
        ([send(), *ran(1, cut=True), hand("0"), killed(2), *ran(9, worker="w2")], arrived("0")),
        ([send(), *ran(1), hand("0"), *arrived("0", cut=True), killed(3)], arrived("0", at=20)),
    ],
    "stuck": [
        ([send("a b"), *ran(1, "a")], ran(2, "b")),
        ([send(**CHORD), *PARTS], ran(2, "body", given=["p1", "p0"])),
        ([send(pill=3), *PILL], [failed()]),
        # A slot that was lost over an exception: its caller never hears.
        ([send(**ODD), *ran(1), answered("PENDING")], [failed(type="StrRaises")]),
        ([send(**ODD), *ran(1)], [failed(type="StrRaises")]),
        ([send(**FORGOTTEN), *ran(1)], [answered("PENDING")]),
        ([send(**FORGOTTEN), *ran(1)], [failed(type="Reject")]),
        ([send(**STOPS), *ran(1, cut=True)], [failed()]),
        ([send(**STOPS), *ran(1, cut=True)], ran(40)),
    ],
    "twice": [
        ([send(), *ran(1), *ran(5, worker="w2")], [killed(3)]),
        ([send(), *ran(1), *ran(5, worker="w2")], [killed(0, until=2, pid=7)]),
        ([send(), *ran(7), *ran(11, worker="w2")], [killed(1, until=2, cut=True)]),
        ([send(), *ran(1, cut=True), *ran(5, worker="w2"), SHRUNK], [killed(3)]),
        (
            [send(**ODD), *ran(1), *ran(3, worker="w2"), failed(type="StrRaises")],
            [killed(2)],
        ),
        ([send(), *ran(1), hand("0"), *arrived("0"), *arrived("0", at=9)], [killed(4)]),
    ],
    "out of order": [
        ([*ORDER, *ran(5), *ran(3, job="k")], [killed(4, "w9")]),
        ([*ORDER, *ran(5), *ran(3, job="k"), placed(), killed(4, "w9")], [killed(4)]),
        ([*ORDER, *ran(5), *ran(3, job="k"), SHRUNK], [killed(4)]),
    ],
    "innocent killed": [
        ([send(), *PILL, killed(2), killed(21), failed()], [killed(41)]),
        ([send(**ODD), *PILL, killed(2), killed(21), failed()], [killed(41)]),
        # What was published by hand under the id of the job has its result there.
        (
            [send(), *ran(1), hand("0"), *arrived("0"), killed(3), failed()],
            [*arrived("0", 20), *arrived("0", 40), killed(20), killed(40)],
        ),
    ],
    "pill": [
        ([send(pill=2), *PILL, failed()], [killed(21, kind="freeze")]),
        ([send(**{**STOPS, "pill": 2}), *PILL, failed()], [killed(21)]),
    ],
    "starved": [([*OVERTAKEN, *ran(102)], [*ran(100.9), killed(100.95)])],
    "silent": [([placed(), placed("w2", "b"), *BUSY], [send(at=60), *ran(60)])],
    "wasted": [
        ([send(), *ran(40), UNLOADED], [send(job="k"), *ran(4, job="k", pid=9)]),
        ([send(), *ran(40), UNLOADED], [WORKED]),
        ([send(), *ran(40), UNLOADED, {**WORKED, "pid": 8}, {**WORKED, "worker": "w2"}], [WORKED]),
    ],
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
    "waiting": [send(), *ran(1), {"event": "rest", "at": 999, "waits": ["celery"]}],
}
#: More of those that have a verdict above.
ALSO: list[tuple[str, list[Line]]] = [
    ("failed", [send(**ODD), *ran(1), failed(type="WorkerLostError"), killed(1)]),
    ("failed", [send(**ODD), failed(type="StrRaises")]),
    # It was taken for running before a process had loaded, and killed three times.
    ("innocent killed", [send(), failed(), *(killed(at) for at in (1, 20, 40))]),
    # One message that came twice: by hand, or as a step that has company by hand.
    ("forked", [send(), *ran(1), hand("0"), *arrived("0"), *arrived("0", message="again")]),
    (
        "forked",
        [
            send("run b"),
            *ran(1),
            *ran(3, "b"),
            *ran(4, "b", message="more"),
            hand("0"),
            *arrived("0"),
        ],
    ),
    ("stuck", [send("run b"), *ran(1), hand("0"), *arrived("0")]),
]


def verdicts(lines: Iterable[Line]) -> list[str]:
    troubles = checker.judge(checker.load([REST, *lines]))
    return [verdict for verdict, texts in troubles.items() if texts]


GUILTY = [(verdict, lines) for verdict, cases in FORGED.items() for lines, _ in cases]
INNOCENTS = [[*lines, *more] for cases in FORGED.values() for lines, more in cases]


@pytest.mark.parametrize(("verdict", "lines"), [*GUILTY, *NEVER.items(), *ALSO])
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


def test_who_stops_a_worker_is_a_harm_to_all_in_it():
    beside = [send(job="k"), *ran(1.01, job="k", cut=True), *ran(9, job="k", worker="w2")]
    stopper = [send(**STOPS), *ran(1, cut=True), failed()]
    assert verdicts([*stopper, *beside]) == []
    assert verdicts([send(), *ran(1, cut=True), *ran(9, worker="w2"), *beside]) == ["twice"]
    # But not to what began in it long after, and not to who is given up.
    late = 1 + checker.STOPPED
    again = [send(job="k"), *ran(late + 1, job="k"), *ran(late + 3, job="k", worker="w2")]
    assert verdicts([*stopper, *again]) == ["twice"]


def test_a_run_that_another_stopper_cut_short_does_not_count():
    other = [send(job="k", **STOPS), *ran(20.1, job="k", cut=True), {**failed(), "job": "k"}]
    assert verdicts([send(**{**STOPS, "pill": 2}), *PILL, failed(), *other]) == []


def test_a_stop_that_is_cut_short_by_a_kill_may_be_a_strike():
    stopper = [send(**{**STOPS, "pill": 2, "stops": checker.KILLED_SOON}), *PILL, failed()]
    assert verdicts(stopper) == ["pill"]
    assert verdicts([*stopper, struck(2)]) == []
    more = [*stopper, *(ran(at, cut=True)[0] for at in (60, 80))]
    strikes = [struck(at) for at in (2, 21, 41)]
    assert verdicts([*more, *strikes]) == ["pill"], "with two strikes it may run four times"
    assert verdicts([send(**{**STOPS, "pill": 2}), *PILL, failed(), struck(2)]) == ["pill"]


def test_what_may_not_have_been_published_is_not_missed():
    one = [send(), *ran(1), hand("0", doubt="TimeoutError")]
    assert verdicts(one) == []
    assert verdicts([*one, *arrived("0")]) == []
    # And what was published in the moment of a crash may run.
    assert verdicts([send(), *ran(1, cut=True), killed(1), *ran(9), *arrived("0")]) == []


def test_each_run_publishes_by_hand_for_itself():
    second = "j run 9 w2"
    runs = [send(), *ran(1, cut=True), killed(2), *ran(9, worker="w2")]
    hands = [hand("0"), hand("0", at=10, run=second)]
    its = {"by": second, "part": "0"}
    assert verdicts([*runs, *hands, *arrived("0")]) == ["lost"]
    assert verdicts([*runs, *hands, *arrived("0"), *ran(11, message="more", **its)]) == []
    # A retry is a step of the job: the one that an earlier run published stands for it.
    retries = [{**line, "once": True} for line in hands]
    assert verdicts([*runs, *retries, *arrived("0")]) == []
    assert verdicts([*runs, *retries, hand("1", at=11, run=second, once=True), *arrived("0")]) == [
        "lost"
    ]


def test_only_rivals_overtake():
    """A queue, or a priority, of its own may wait longer, and so may what killed its process."""
    for facts in ({"queue": "q"}, {"priority": 9}, {"due": 50}, {"pill": 1}):
        ended = [failed()] if "pill" in facts else []
        job = send(**{"queue": "c", **facts})
        assert verdicts([job, *OVERTAKEN[1:], *ran(102), *ended]) == []
    assert verdicts([*OVERTAKEN, *ran(101)]) == []  # a machine that is busy lets all wait


def test_two_processes_of_a_pool_may_begin_in_any_order():
    assert verdicts([*OVERTAKEN, *ran(101 + checker.ALONGSIDE)]) == []
    assert verdicts([*OVERTAKEN, *ran(101.01 + checker.ALONGSIDE)]) == ["starved"]


def test_a_run_that_begins_as_its_worker_thaws_began_before_the_freeze():
    """The worker was declared dead meanwhile, and the job has run elsewhere."""
    froze = killed(1, until=20, kind="freeze beyond the limits")
    elsewhere = [send(), *ran(12, worker="w2"), froze]
    assert verdicts([*elsewhere, *ran(20.01)]) == []
    assert verdicts([*elsewhere, *ran(20.01 + checker.THAWED)]) == ["twice"], "a start too late"
    assert verdicts([*elsewhere, *ran(20.01, worker="w3")]) == ["twice"], "of another worker"


def test_a_worker_that_stops_wastes_no_process():
    assert verdicts([send(), *ran(5 + checker.STOPPED), UNLOADED]) == []
    assert verdicts([send(), *ran(5.1 + checker.STOPPED), UNLOADED]) == ["wasted"]
    assert verdicts([UNLOADED, {**UNLOADED, "pid": 8, "at": 36}]) == ["wasted"]


def test_a_place_is_busy_whoever_works_there():
    places = [placed(), placed("w2", "b"), placed("w3", at=50)]
    assert verdicts([*places, *BUSY]) == ["silent"]
    assert verdicts([*places, *BUSY, send(at=60), *ran(60, worker="w3")]) == []
    assert verdicts([placed(queue="idle"), placed("w2", "b"), *BUSY]) == []


def test_a_body_that_never_ran_has_failed_with_its_part():
    chord = [send(**CHORD), *ran(1, "p0"), killed(1), failed("p1"), failed("body", "ChordError")]
    assert verdicts(chord) == ["innocent killed"]


#: A job that ran on two workers, which were killed, and was given up when a third was killed that
#: had claimed it: the third run never began.
CLAIMED = [send(), *ran(1, cut=True), *ran(20, cut=True, worker="w2"), failed()]
KILLS = [killed(2), killed(21, "w2"), killed(41, "w3")]
STRIKES = [struck(3), struck(22, "w2"), struck(42, "w3")]


def test_a_job_that_was_given_up_before_its_third_run_began_has_a_harm_for_each_strike():
    assert verdicts([*CLAIMED, *KILLS, *STRIKES]) == []
    # None of the three had begun it: a claim that starts a job counts, too.
    assert verdicts([send(), failed(), *KILLS, *STRIKES]) == []
    # The third froze, and a strike may have the time of the whole second before its harm.
    frozen = killed(41.5, "w3", until=55, kind="freeze")
    assert verdicts([*CLAIMED, *KILLS[:2], frozen, *STRIKES[:2], struck(41, "w3")]) == []
    # A harm to all connections explains what it cut short there, as the end of a worker does.
    cut = killed(2, "w1", "w2", cut=True)
    assert verdicts([*CLAIMED, cut, *KILLS[1:], *STRIKES]) == []


@pytest.mark.parametrize(
    ("harms", "strikes"),
    [
        (KILLS, []),
        (KILLS, STRIKES[:2]),
        (KILLS[:2], STRIKES),
        ([*KILLS[:2], killed(41, "w4")], STRIKES),
        (KILLS, [*STRIKES, struck(43, "w3")]),
        (KILLS, [*STRIKES[:2], struck(42, "w4")]),
        (KILLS, [*STRIKES[:2], struck(42, "")]),
        (KILLS, [*STRIKES[:2], struck(40.9 - checker.ROUNDED, "w3")]),
        (KILLS, [*STRIKES[:2], struck(41.1 + checker.UNSETTLED, "w3")]),
        (KILLS, [*STRIKES[:2], struck(42, "w3", job="k")]),
        (KILLS, [*STRIKES[:2], struck(42, "w3", step="other")]),
        ([*KILLS[:2], killed(41, "w3", pid=7)], STRIKES),
        ([*KILLS[:2], killed(41, "w3", cut=True)], STRIKES),
        ([*KILLS[:2], SHRUNK], STRIKES),
        ([KILLS[0], killed(21, "w2", pid=8), KILLS[2]], STRIKES),
    ],
    ids=[
        "the runner tells of no strike",
        "of two alone",
        "no harm",
        "a harm to another worker",
        "one harm for two strikes",
        "a strike of a worker that went on",
        "of one that is not known",
        "before the harm",
        "long after it",
        "of another job",
        "of another step",
        "a harm to one process of the pool, which had no run",
        "a harm that ended no worker",
        "a pool that shrank",
        "a run, and a harm to another process",
    ],
)
def test_the_control_a_strike_without_a_harm_stays_unexplained(harms, strikes):
    assert verdicts([*CLAIMED, *harms, *strikes]) == ["innocent killed"]


#: Seconds at which a snapshot was made, and the server was killed and had come back from it.
BACK, FELL, CAME = 100.0, 160.0, 161.0


def restored(**facts: Any) -> Line:
    return killed(FELL, "w1", "w2", until=CAME, cut=True, back=BACK, **facts)


#: The last moment at which a harm to all connections still explains what happens to them.
OVER = CAME + checker.CUT_OFF
#: The last end of a run that may not be settled in the snapshot.
OPEN = BACK - checker.UNSETTLED - 0.1


@pytest.mark.parametrize(
    ("verdict", "at", "again"),
    [
        ([], 110, 170),
        ([], OPEN + 0.01, 170),
        ([], OVER - 0.1, OVER + 5),
        (["twice"], OPEN - 0.1, 170),
        (["twice"], 110, FELL - 0.1),
        (["twice"], OVER + 0.1, OVER + 5),
    ],
    ids=[
        "settled since the snapshot",
        "perhaps not settled before it",
        "held as the server came back",
        "settled before it",
        "again before the server was killed",
        "begun after the server was back",
    ],
)
def test_a_server_that_came_back_forgets_what_was_settled_since_and_nothing_else(
    verdict, at, again
):
    runs = [send(), *ran(at), *ran(again, worker="w2")]
    assert verdicts([*runs, restored()]) == verdict
    assert verdicts(runs) == ["twice"], "the control: no server came back"


@pytest.mark.parametrize(
    ("verdict", "at", "until"),
    [
        ([], 110, 110),
        ([], BACK - 1, BACK),
        ([], CAME, CAME + 1),
        (["lost"], BACK - 1, BACK - 0.1),
        (["lost"], CAME + 0.1, CAME + 1),
    ],
    ids=["since", "meanwhile", "as it came back", "before the snapshot", "after it was back"],
)
def test_a_server_that_came_back_loses_what_was_sent_since_and_nothing_else(verdict, at, until):
    assert verdicts([send(at=at, until=until), restored()]) == verdict
    assert verdicts([send(at=at, until=until, pill=3), restored()]) == (verdict and ["stuck"])
    begun = ran(max(at, 120), cut=True)
    assert verdicts([send(at=at, until=until), *begun, killed(200), restored()]) == verdict


def test_a_step_is_lost_only_with_the_job_that_publishes_it():
    """A job that was sent before the snapshot is in it, and runs again; one that ends after the
    server is back publishes to that server."""
    assert verdicts([send("a b", at=110), *ran(120, "a"), restored()]) == []
    assert verdicts([send("a b", at=90), *ran(120, "a"), restored()]) == ["stuck"]
    assert verdicts([send("a b", at=110), *ran(OVER, "a"), restored()]) == ["stuck"]


@pytest.mark.parametrize(
    ("verdict", "at"), [([], 120), ([], OPEN + 0.01), (["stuck"], OPEN - 0.1), (["stuck"], OVER)]
)
def test_the_body_of_a_chord_is_lost_if_its_last_part_ended_since(verdict, at):
    parts = [*ran(1, "p0"), *ran(at, "p1")]
    assert verdicts([send(**CHORD), *parts, restored()]) == verdict
    # A part that ran again had been counted when it ran first.
    again = [killed(190), *ran(195, "p1", worker="w2")]
    assert verdicts([send(**CHORD), *ran(1, "p0"), *ran(189.9, "p1"), *again, restored()]) == [
        "stuck"
    ]


def test_a_step_is_published_again_if_the_server_forgot_it():
    """Once for each server that came back, and only by a job that ran again for that."""
    forks = [send("a b c"), *ran(110, "a"), *ran(111, "b"), *ran(112, "c")]
    again = [*ran(170, "a", worker="w2"), *ran(172, "b", message="2", worker="w2")]
    end = ran(174, "c", message="2", worker="w2")
    assert verdicts([*forks, *again, *end, restored()]) == []
    assert verdicts([*forks, *again, *end]) == ["twice", "forked"]
    assert verdicts([*forks, *again, *end, *ran(173, "b", message="3"), restored()]) == ["forked"]
    assert verdicts([*forks, *ran(172, "b", message="2"), restored()]) == ["forked"], "by whom?"
    # Of each message there is one run, here too.
    assert verdicts([*forks, *again, *end, *ran(180, "b", message="2"), restored()]) == ["twice"]


def test_what_was_published_by_hand_since_may_be_lost():
    for at, verdict in ((110, []), (BACK - 0.1, ["lost"]), (OVER + 0.1, ["lost"])):
        assert verdicts([send(), *ran(1), hand("0", at=at), restored()]) == verdict


def test_the_runs_of_a_killer_are_counted_again_by_a_server_that_came_back():
    killer = [send(pill=2, at=90), failed(), restored()]
    first = [*ran(110, cut=True), *ran(120, cut=True)]
    second = [*ran(170, cut=True), *ran(180, cut=True)]
    assert verdicts([*killer, *first, *second]) == []
    assert verdicts([*killer, *first, *ran(130, cut=True)]) == ["pill"]
    assert verdicts([*killer, *first, *second, *ran(190, cut=True)]) == ["pill"]
    assert verdicts([*killer, *ran(1, cut=True), *ran(20, cut=True), *second]) == []


def test_what_shares_its_task_id_is_a_job_of_its_own():
    """A killer with that id is given up; the other jobs with it run, and have no result."""
    shared = {"shared": "again-1", "kind": "again"}
    jobs = [send(**shared, pill=3), *PILL, send(job="k", at=50, **shared)]
    assert verdicts([*jobs, *ran(51, job="k")]) == []
    assert verdicts(jobs) == ["lost"]
    assert verdicts([*jobs, *ran(51, job="k"), *ran(60, cut=True)]) == ["pill"]
    assert verdicts([send(**shared, pill=3)]) == ["lost"]
    assert verdicts([*jobs, *ran(51, job="k"), *ran(60, job="k", worker="w2")]) == ["twice"]


def test_of_thousands_of_parts_each_ends_and_the_body_gets_each():
    parts = [f"p{number}" for number in range(2000)]
    runs = [line for part in parts for line in ran(1, part)]
    group = send(" ".join(parts), parts=2000, kind="group")
    assert verdicts([group, *runs]) == []
    assert verdicts([group, *runs[:-2]]) == ["lost"]
    crowd = send(" ".join([*parts, "body"]), parts=2000, values=parts, kind="crowd")
    assert verdicts([crowd, *runs, *ran(2, "body", given=parts)]) == []
    assert verdicts([crowd, *runs, *ran(2, "body", given=parts[:-1])]) == ["wrong values"]
    assert verdicts([crowd, *runs]) == ["stuck"]


#: What happens to a network or to the CPU in the storm: the runs of the workers there are excused,
#: as by any harm, and no others; idle connections that are closed excuse nothing.
@pytest.mark.parametrize("kind", ["partition to the server", "packet loss", "latency"])
def test_a_network_that_fails_in_part_excuses_runs_of_its_machine_alone(kind):
    harm = killed(1, until=20, cut=True, kind=kind)
    for worker, verdict in (("w1", []), ("w2", ["twice"])):
        runs = [send(), *ran(5, cut=True, worker=worker), *ran(15, worker="w3")]
        assert verdicts([*runs, harm]) == verdict
    late = [send(), *ran(20.1 + checker.CUT_OFF), *ran(40, worker="w3")]
    assert verdicts([*late, harm]) == ["twice"]
    # And none of it makes up for a job that never ends, or for a fork.
    assert verdicts([send(), *ran(5, cut=True), harm]) == ["lost"]
    assert verdicts([*NEVER["forked"], harm]) == ["forked"]


def test_idle_connections_that_are_closed_excuse_nothing():
    closed = killed(1, until=20, kind="idle connections closed") | {"workers": []}
    assert verdicts([send(), *ran(5), *ran(15, worker="w2"), closed]) == ["twice"]
    assert verdicts([send(), *ran(5, cut=True), closed]) == ["lost"]


def test_little_cpu_excuses_its_worker_and_no_silence():
    slow = killed(1, until=20, kind="little CPU")
    assert verdicts([send(), *ran(5), *ran(15, worker="w2"), slow]) == []
    assert verdicts([send(), *ran(5, worker="w2"), *ran(15), slow]) == ["twice"]
    slow = killed(1, until=200, kind="little CPU")
    assert verdicts([placed(), placed("w2", "b"), *BUSY, slow]) == ["silent"]


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
    # Its result is not asked for, and so has no error.
    assert verdicts([send(doubt="TimeoutError", ends=["FAILURE"]), *ran(1)]) == []
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
    assert len(Path(checker.__file__).read_text().splitlines()) < 600
