"""Recover or kill: who is asked, what their answers count, and who is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from redis.exceptions import OutOfMemoryError, ResponseError

from celery_superfetch.model.config import ANNOUNCE_TASK
from celery_superfetch.model.dead_job import DeadJob
from celery_superfetch.model.strikes import Blame, Decision, Recovery, decide
from celery_superfetch.signals import job_killed, job_recovering
from support.workers.bench import Bench, payload

JOB = payload(1)
Answer = Callable[[Recovery], Any]


class Moody:
    """A receiver whose other attributes are read from a Redis server, which refuses that."""

    def __call__(self, **_: Any) -> Decision:
        return Decision.KILL

    def __getattr__(self, name: str) -> Any:
        if name == "is_default":
            raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
        raise AttributeError(name)


class Sender:
    """Stands for an app: receivers are connected for it alone, and go with it."""


def asked(sender: object, answer: Answer) -> list[Recovery]:
    """Connect a receiver that answers so; the recoveries it was asked about."""
    questions: list[Recovery] = []

    def receiver(recovery: Recovery, **_: Any) -> Any:
        questions.append(recovery)
        return answer(recovery)

    # Receivers are known by their sender's id, which nobody else must get while they are there.
    receiver.sender = sender  # type: ignore[attr-defined]
    job_recovering.connect(receiver, sender=sender, weak=False)
    return questions


def die(bench: Bench, sender: object, *raws: bytes, **record: Any) -> Any:
    """An owner that holds these jobs, and runs the first one only, dies, and a pass is made."""
    bench.client.delete("mail", bench.keys.probation("mail"))
    jobs = raws or (JOB,)
    bench.dead_owner(jobs, running=jobs[:1], **record)
    return bench.reaper(sender=sender).reap()


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    """One whose guard is asked."""
    return make_app()


def test_without_anybody_to_ask_a_job_is_recovered(bench):
    for _ in range(5):
        assert die(bench, Sender()).recovered == 1


def test_a_receiver_sees_the_job_its_owner_and_its_counts(bench):
    sender = Sender()
    questions = asked(sender, lambda recovery: None)
    die(bench, sender)
    die(bench, sender, state="stopping")
    one, two = questions
    assert (one.task, one.task_id, one.app_name) == ("shop.note", "1", "shop")
    assert one.job.payload == JOB
    assert (one.strikes, one.recoveries, one.blame) == (1, 1, Blame.EXACT)
    assert (two.strikes, two.recoveries, two.blame) == (1, 2, Blame.STOP)
    assert "gone" in one.reason


def test_a_first_strike_that_is_the_last_kills_the_copy_that_ran_alone(make_bench):
    bench, sender = make_bench(strike_limit=1), Sender()
    asked(sender, decide)
    report = die(bench, sender, JOB, JOB)
    assert (report.killed, report.recovered, report.errors) == (1, 1, 0)
    assert (len(bench.dead_set), len(bench.queue())) == (1, 1)
    assert not bench.counters(JOB).strikes


def test_a_receivers_kill_kills(bench):
    sender = Sender()
    asked(sender, lambda recovery: Decision.KILL)
    killed: list[DeadJob] = []

    def note(job: DeadJob, **_: Any) -> None:
        killed.append(job)

    job_killed.connect(note, sender=sender)
    report = die(bench, sender)
    assert (report.killed, report.recovered) == (1, 0)
    assert bench.queue() == []
    [job] = bench.dead_set.find()
    assert job.payload == JOB
    assert [dead.id for dead in killed] == [job.id]


def test_kill_outweighs_recover_among_receivers(bench):
    sender = Sender()
    asked(sender, lambda recovery: Decision.RECOVER)
    asked(sender, lambda recovery: Decision.KILL)
    asked(sender, lambda recovery: Decision.RECOVER)
    assert die(bench, sender).killed == 1


@pytest.mark.parametrize("answer", [None, True, "KILL", "kill", 0], ids=repr)
def test_any_other_answer_has_no_say(bench, answer):
    sender = Sender()
    assert asked(sender, lambda recovery: answer) == []
    assert die(bench, sender).recovered == 1


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no idea"),
        OutOfMemoryError("full"),
        ResponseError("WRONGTYPE"),
        OSError("none"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_receiver_that_raises_has_no_say(bench, caplog, error):
    """Also if it raises an error of its own Redis client: the broker is not to blame for that."""
    sender = Sender()

    def fail(recovery: Recovery) -> None:
        raise error

    questions = asked(sender, fail)
    report = die(bench, sender)
    assert (report.recovered, report.errors) == (1, 0)
    assert len(questions) == 1
    raised, ignored = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    for line in (raised, ignored):
        assert line.startswith("Receiver <function asked.<locals>.receiver")
    assert "of signal job_recovering raised" in raised
    assert "was ignored for job shop.note[1], since it returned or raised" in ignored
    asked(sender, lambda recovery: Decision.KILL)
    assert die(bench, sender).killed == 1, "and the others have theirs"


def test_no_attribute_of_a_receiver_is_asked_for(bench, caplog):
    """An error of its own Redis client was taken for the broker's: the job stayed with its dead
    owner, and each pass reported an error."""
    sender, receiver = Sender(), Moody()
    job_recovering.connect(receiver, sender=sender, weak=False)
    report = die(bench, sender)
    assert (report.killed, report.recovered, report.errors) == (1, 0, 0)
    assert "Nothing was lost" not in caplog.text


def test_each_job_of_a_batch_is_asked_about(bench):
    sender = Sender()
    asked(sender, lambda r: Decision.KILL if r.task_id in ("1", "3") else None)
    report = die(bench, sender, *(payload(n) for n in range(5)))
    assert (report.killed, report.recovered) == (2, 3)
    assert bench.queue() == [payload(0), payload(2), payload(4)]
    assert {job.task_id for job in bench.dead_set.find()} == {"1", "3"}


def test_the_shipped_guard_kills_at_the_third_strike(bench, app):
    outcomes = [(report.recovered, report.killed) for report in (die(bench, app) for _ in "123")]
    assert outcomes == [(1, 0), (1, 0), (0, 1)]
    [job] = bench.dead_set.find()
    assert (job.strikes, len(job.history)) == (3, 3)


def test_another_receiver_overrules_the_shipped_guard(bench, app):
    asked(app, lambda recovery: Decision.RECOVER)
    assert all(die(bench, app).recovered == 1 for _ in range(5))


def test_deploys_do_not_strike_a_job_out(make_bench, app):
    """Nor do they put it on probation, however many there are."""
    bench = make_bench(recovery_limit=5)
    for _ in range(12):
        assert die(bench, app, state="stopping").recovered == 1
        assert bench.queue() == [JOB]
    assert (bench.counters(JOB).strikes, bench.counters(JOB).stops) == (0, 12)


def test_a_job_is_killed_at_its_last_stop_and_the_reason_says_so(make_bench, app):
    """A job that makes its worker stop looks like one that a deploy has cut short."""
    bench = make_bench(stop_limit=5)
    assert [die(bench, app, state="stopping").killed for _ in range(5)] == [0, 0, 0, 0, 1]
    [job] = bench.dead_set.find()
    assert (job.stops, job.strikes) == (5, 0)
    assert [entry["stop"] for entry in job.history] == [True] * 5
    assert job.reason.startswith("5 of its runs were cut short because their worker was stopping")


def test_a_job_that_only_waited_in_a_stopping_worker_has_no_stop(make_bench, app):
    bench = make_bench(stop_limit=1)
    runs, waits = payload("runs"), payload("waits")
    for _ in range(3):
        assert die(bench, app, payload(f"bystander {_}"), waits, state="stopping").killed == 1
        bench.client.delete("mail")
    assert (bench.counters(waits).stops, bench.counters(waits).recoveries) == (0, 3)
    assert die(bench, app, runs, state="stopping").killed == 1, "the control"


def test_from_its_third_stop_on_a_job_comes_behind_those_that_wait(bench, app):
    for others in ([JOB, b"other"], [JOB, b"other"], [b"other", JOB]):
        bench.dead_owner([JOB], running=[JOB], state="stopping")
        bench.push("mail", b"other")
        assert bench.reaper(sender=app).reap().recovered == 1
        assert bench.queue() == others
        bench.client.delete("mail")


def test_twenty_deaths_alongside_others_end_a_job(make_bench, app):
    """A suspect that quiesces have not helped never runs alone: no strike would be its last."""
    bench = make_bench()
    for n in range(20):
        other = payload(f"other {n}")
        bench.client.delete("mail", bench.keys.probation("mail"))
        bench.dead_owner([other, JOB], running=[other, JOB])
        report = bench.reaper(sender=app).reap()
        assert report.killed == (n == 19)
    [job] = bench.dead_set.find()
    assert job.payload == JOB
    assert job.reason.startswith("20 workers died while it ran alongside other jobs")


@pytest.mark.parametrize("eta", [{}, {"eta": "2999-01-01T00:00:00+00:00"}], ids=["due", "ahead"])
def test_what_kills_whoever_decodes_it_ends(make_bench, app, eta):
    """It never runs, so nothing strikes it until it is alone, whatever its ETA."""
    bench = make_bench(recovery_limit=5)
    bomb = payload("bomb", **eta)
    for n in range(5):
        bystander = payload(f"bystander {n}")
        bench.dead_owner([bystander, bomb], running=[bystander])
        assert bench.reaper(sender=app).reap().recovered == 2
    assert bench.on_probation() == [bomb]
    assert bench.counters(bomb).strikes == 0
    assert [die(bench, app, bomb).killed for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("raw", "record"),
    [(JOB, {"app": "another"}), (payload(1, task="shop.unknown"), {})],
    ids=["of another app", "of a task this app does not have"],
)
def test_a_strangers_job_is_recovered_not_killed(bench, app, raw, record):
    assert all(die(bench, app, raw, **record).recovered == 1 for _ in range(5))
    assert len(bench.dead_set) == 0


def test_what_cannot_be_parsed_is_counted_and_killed_like_the_rest(bench, app):
    outcomes = [die(bench, app, b"\xffjunk").killed for _ in range(3)]
    assert outcomes == [0, 0, 1]
    [job] = bench.dead_set.find()
    assert job.payload == b"\xffjunk"
    assert not job.parsed


def test_a_pass_leaves_it_to_notices_to_tell(bench):
    """C1: no pass waits for a result backend. Of junk it tells itself: nobody waits for that."""
    sender, told = Sender(), list[bytes]()
    asked(sender, lambda recovery: Decision.KILL)
    job_killed.connect(lambda job, **_: told.append(job.payload), sender=sender, weak=False)
    bench.dead_owner([JOB, b"junk"])
    reaper = bench.reaper(sender=sender, notice=lambda queue_list: b"killed: @dead_id@")
    report = reaper.reap()
    assert (report.killed, report.errors) == (2, 0)
    assert told == [b"junk"]
    [untold] = bench.untold()
    assert untold.payload == JOB
    assert bench.queue() == [f"killed: {untold.id}".encode()]


@pytest.mark.parametrize("lacks", ["", "message", "queue"])
def test_a_job_without_a_notice_is_told_of_by_the_pass(bench, lacks):
    """None could be made, or its queue's key is another program's: neither told. With "": the
    control."""
    sender, told = Sender(), list[bytes]()
    asked(sender, lambda recovery: Decision.KILL)
    job_killed.connect(lambda job, **_: told.append(job.payload), sender=sender, weak=False)
    bench.dead_owner([JOB])
    if lacks == "queue":
        bench.client.set("mail", "not a list")
    notice = b"" if lacks == "message" else b"killed: @dead_id@"
    report = bench.reaper(sender=sender, notice=lambda queue_list: notice).reap()
    assert (report.killed, report.errors) == (1, 0)
    assert told == ([JOB] if lacks else [])


def test_of_a_dead_notice_no_pass_tells(bench):
    sender, told = Sender(), list[bytes]()
    asked(sender, lambda recovery: Decision.KILL)
    job_killed.connect(lambda job, **_: told.append(job.payload), sender=sender, weak=False)
    bench.dead_owner([payload(1, task=ANNOUNCE_TASK)])
    report = bench.reaper(sender=sender, notice=lambda queue_list: b"killed: @dead_id@").reap()
    assert (report.killed, told, bench.queue()) == (1, [], [])
