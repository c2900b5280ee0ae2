"""Jobs of a live owner that lost their pool child, or are no messages at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count

import pytest
import redis

from celery_superfetch.model.dead_job import DeadJob
from celery_superfetch.model.foreign import describe
from celery_superfetch.model.job import Job, digest
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.strikes import (
    DEATHS_ALONGSIDE,
    Blame,
    Counters,
    Decision,
    Limits,
    Recovery,
    decide,
)
from celery_superfetch.signals import job_killed, job_recovering
from celery_superfetch.store.database import Database
from support.driver import Driver, Executor
from support.servers.faulty import Fault
from support.workers.bench import Bench, lost_job, payload

Lose = Callable[..., DeadJob | None]
_numbers = count(1)


@pytest.fixture
def told() -> Iterator[list[str]]:
    """The dead jobs that receivers of ``job_killed`` were told of."""
    jobs: list[str] = []

    def hear(job: DeadJob, **_: object) -> None:
        jobs.append(job.id)

    job_killed.connect(hear)
    yield jobs
    job_killed.disconnect(hear)


def nobodys_app() -> str:
    """A sender of signals that none was before: an object may have the id of one that is gone, and
    whose receivers are still there."""
    return f"app {next(_numbers)}"


def test_a_job_that_lost_its_child_is_recovered_and_counted(bench, owner, lose):
    [claimed] = bench.take(owner, payload(1))
    assert lose(claimed.job) is None
    assert bench.queue() == [payload(1)]
    counters = bench.counters(payload(1))
    assert (counters.strikes, counters.recoveries) == (1, 1)
    assert len(bench.driver) == 0
    [again] = bench.take(owner)
    assert again.counters


def test_a_job_that_lost_its_child_is_killed_when_a_receiver_says_so(bench, owner, lose, caplog):
    """And that is logged once, with the way back."""
    sender = nobodys_app()
    job_recovering.connect(lambda **_: Decision.KILL, sender=sender, weak=False)
    [claimed] = bench.take(owner, payload(1))
    dead = lose(claimed.job, sender)
    assert dead is not None
    assert (dead.payload, dead.reason, dead.strikes) == (payload(1), "pool child lost", 1)
    assert [job.id for job in bench.dead_set.find()] == [dead.id]
    assert bench.queue() == bench.private(owner) == []
    assert len(bench.driver) == 0
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{claimed.job.title} moved to the dead set after 1 strike and 1 recovery" in said
    assert f" superfetch dead show {dead.id}` shows its history" in said, (
        "a command that can be copied"
    )


def test_each_strike_is_a_warning_that_names_the_job(bench, owner, lose, caplog):
    """E7. Strikes 1 and 2 of a lost child were nameless."""
    for strike, then in (
        (1, "moved to the dead set at strike 3"),
        (2, "moved to the dead set at strike 3"),
    ):
        [claimed] = bench.take(owner, payload(1))
        with caplog.at_level("WARNING"):
            lose(claimed.job)
        said = caplog.messages[-1]
        assert said.startswith("Job shop.note[1] recovered (queue=mail, owner=")
        assert f"; strike {strike} of 3: " in said
        assert then in said
        assert "pool child lost" in said
        bench.client.delete("mail")
    before = len(caplog.messages)
    [claimed] = bench.take(owner, payload(2))
    lose(claimed.job, stopping=True)
    assert len(caplog.messages) == before, "no strike, no warning"


def test_a_job_that_lost_its_child_and_was_taken_away_is_announced(bench, owner, lose, lost):
    [claimed] = bench.take(owner, payload(1))
    bench.client.delete(bench.keys.private(owner.owner))
    assert lose(claimed.job) is None
    assert lost == [lost_job(claimed.job)]
    assert bench.queue() == []
    assert bench.counters(payload(1)) == Counters()


@pytest.mark.parametrize("taken", [True, False], ids=["taken away", "control"])
def test_receivers_are_asked_once_about_a_job_that_was_taken_away(bench, owner, lose, lost, taken):
    """They were asked five times, for a job that is another owner's."""
    sender, asked = nobodys_app(), []
    [claimed] = bench.take(owner, payload(1))

    def answer(recovery: Recovery, **_: object) -> None:
        asked.append(recovery.title)

    job_recovering.connect(answer, sender=sender)
    if taken:
        bench.client.delete(bench.keys.private(owner.owner))
    assert lose(claimed.job, sender) is None
    assert asked == [claimed.job.title]
    assert lost == ([lost_job(claimed.job)] if taken else [])
    assert bench.queue() == ([] if taken else [payload(1)])


def test_receivers_are_asked_once_about_a_job_over_its_limit_that_was_taken_away(
    bench, owner, lose
):
    sender, asked = nobodys_app(), []

    def kill(recovery: Recovery, **_: object) -> Decision:
        asked.append(recovery.strikes)
        return Decision.KILL

    job = spared(bench, owner, lose)
    job_recovering.connect(kill, sender=sender)
    bench.client.delete(bench.keys.private(owner.owner))
    assert bench.driver.kill_if_over_limit(job, sender, Limits.of(bench.config)) is None
    assert asked == [3]
    assert job not in bench.driver
    assert len(bench.dead_set) == 0


def test_a_lost_child_of_a_job_that_was_announced_as_lost_is_no_news(bench, owner, lose, lost):
    [claimed] = bench.take(owner, payload(1))
    bench.hand_over(claimed)
    bench.mark(owner)
    bench.client.delete(bench.keys.private(owner.owner))
    bench.driver.learn(owner.owner)
    assert lose(claimed.job) is None
    assert lost == [lost_job(claimed.job)]
    assert claimed.job not in bench.driver


def test_a_lost_child_of_a_job_that_a_reaper_took_is_announced_by_its_recovery(
    bench, owner, lose, lost
):
    """The first try to recover it has failed: only the server knows whether it was carried out."""
    [claimed] = bench.take(owner, payload(1))
    bench.hand_over(claimed)
    with bench.driver.lose_reply(), pytest.raises(redis.ConnectionError):
        lose(claimed.job)
    bench.mark(owner)
    bench.client.delete(bench.keys.private(owner.owner))
    bench.driver.learn(owner.owner)
    assert not lost
    assert lose(claimed.job) is None
    assert lost == [lost_job(claimed.job)]
    assert claimed.job not in bench.driver


def test_a_decision_is_taken_anew_when_somebody_else_counted(bench, owner, lose):
    """Another process changes the counters between question and answer."""
    sender, asked = nobodys_app(), []
    [claimed] = bench.take(owner, payload(1))

    def meddle(recovery: Recovery, **_: object) -> None:
        asked.append(recovery.recoveries)
        if len(asked) < 3:
            bench.client.hincrby(bench.keys.history(recovery.digest), "recoveries", 1)

    job_recovering.connect(meddle, sender=sender)
    lose(claimed.job, sender)
    assert asked == [1, 2, 3]
    assert bench.queue() == [payload(1)]
    assert bench.counters(payload(1)).recoveries == 3


def test_without_end_of_counting_the_job_is_safe_on_its_queue(bench, owner, lose):
    sender = nobodys_app()
    [claimed] = bench.take(owner, payload(1))

    def meddle(recovery: Recovery, **_: object) -> None:
        bench.client.hincrby(bench.keys.history(recovery.digest), "recoveries", 1)

    job_recovering.connect(meddle, sender=sender)
    assert lose(claimed.job, sender) is None
    assert bench.queue() == [payload(1)]
    assert bench.private(owner) == []
    assert len(bench.driver) == 0


def test_a_start_record_that_arrives_after_the_recovery_leaves_nothing(bench, owner, lose):
    """It goes by another connection, and nothing waits for its reply."""
    driver = bench.driver
    [claimed] = bench.take(owner, payload(1))
    assert driver.start(claimed.job)
    assert driver.has_unread
    lose(claimed.job)
    bench.run(bench.lists.settle(owner.owner, [], [claimed.job]))
    driver.flush()
    assert not bench.client.exists(bench.keys.private(owner.owner))
    [again] = bench.take(owner)
    assert driver.start(again.job)
    driver.flush()
    assert bench.recorded(owner) == [digest(payload(1))]


def spared(bench: Bench, owner: OwnerRecord, lose: Lose, stopping: bool = False) -> Job:
    """A claimed job with three strikes, and perhaps a recovery for which it has none."""
    bench.push("mail", payload(1))
    for last in (False, False, False, *[True] * stopping):
        [claimed] = bench.take(owner)
        assert lose(claimed.job, stopping=last) is None
        if not bench.queue():
            bench.client.rename(bench.keys.probation("mail"), "mail")
    [claimed] = bench.take(owner)
    assert claimed.counters is not None
    assert claimed.counters.strikes == 3
    return claimed.job


@pytest.mark.parametrize("decision", Decision)
def test_who_comes_back_over_its_limit_is_killed_unless_it_is_spared_again(
    bench, owner, lose, decision
):
    """A4: whoever recovered it may have been of another app."""
    sender, seen = nobodys_app(), []

    def answer(recovery: Recovery, **_: object) -> Decision:
        seen.append(recovery)
        return decision

    job = spared(bench, owner, lose)
    job_recovering.connect(answer, sender=sender)
    dead = bench.driver.kill_if_over_limit(job, sender, Limits.of(bench.config))
    [asked] = seen
    assert (asked.strikes, asked.recoveries, asked.blame) == (3, 3, Blame.EXACT)
    if decision is Decision.RECOVER:
        assert dead is None
        assert job in bench.driver
        return
    assert dead is not None
    assert (dead.reason, len(dead.history)) == ("pool child lost", 3)
    assert (dead.strikes, dead.recoveries) == (3, 3)
    assert [job.record() for job in bench.dead_set.find()] == [dead.record()]
    assert bench.private(owner) == bench.queue() == []


@pytest.mark.parametrize("error", [RuntimeError("no idea"), redis.ResponseError("WRONGTYPE")])
@pytest.mark.parametrize("is_over_limit", [True, False])
def test_a_receiver_that_raises_keeps_no_job_waiting(
    bench, owner, lose, caplog, error, is_over_limit
):
    """An error of its own Redis client is not a refusal of the broker."""
    sender = nobodys_app()

    def fail(**_: object) -> None:
        raise error

    job_recovering.connect(fail, sender=sender)
    if is_over_limit:
        job = spared(bench, owner, lose)
        assert bench.driver.kill_if_over_limit(job, sender, Limits.of(bench.config)) is None
        assert job in bench.driver, "it is delivered, as a job that no receiver decides on"
    else:
        [claimed] = bench.take(owner, payload(1))
        assert lose(claimed.job, sender) is None
        assert bench.queue() == [payload(1)]
    assert f"Receiver {describe(fail)} of signal job_recovering raised {describe(error)}" in (
        caplog.text
    )


@pytest.mark.parametrize("is_over_limit", [True, False])
def test_no_attribute_of_a_receiver_is_asked_for(bench, owner, lose, is_over_limit):
    """An error of its own Redis client was raised as a refusal of the broker: the job was tried
    again and again."""
    sender = nobodys_app()

    class Moody:
        def __call__(self, **_: object) -> Decision:
            return Decision.KILL

        def __getattr__(self, name: str) -> object:
            if name == "is_default":
                raise redis.ResponseError("WRONGTYPE")
            raise AttributeError(name)

    job_recovering.connect(Moody(), sender=sender, weak=False)
    if is_over_limit:
        job = spared(bench, owner, lose)
        dead = bench.driver.kill_if_over_limit(job, sender, Limits.of(bench.config))
    else:
        [claimed] = bench.take(owner, payload(1))
        dead = lose(claimed.job, sender)
    assert dead is not None
    assert bench.private(owner) == bench.queue() == []


@pytest.mark.parametrize("deaths", [DEATHS_ALONGSIDE - 1, DEATHS_ALONGSIDE])
def test_who_comes_back_after_too_many_deaths_alongside_others_is_killed(bench, owner, deaths):
    """The reaper of another app, which does not have its task, has recovered it."""
    sender, history = (
        nobodys_app(),
        [{"owner": "o", "reason": "gone", "strike": "suspect", "at": 1}],
    )
    counters = {"strikes": 2, "recoveries": deaths, "alongside": deaths}
    fields = {**counters, "deaths": deaths, "history": json.dumps(history)}
    bench.client.hset(bench.keys.history(digest(payload(1))), mapping=fields)
    bench.client.set(bench.keys.has_history, 1)
    job_recovering.connect(lambda recovery, **_: decide(recovery), sender=sender, weak=False)
    [claimed] = bench.take(owner, payload(1))
    dead = bench.driver.kill_if_over_limit(claimed.job, sender, Limits.of(bench.config))
    assert (dead is not None) == (deaths == DEATHS_ALONGSIDE)
    assert (
        dead is None
        or dead.reason == f"{deaths} workers died while it ran alongside other jobs (last: gone)"
    )


def test_who_comes_back_over_its_limit_by_no_fault_of_its_own_is_spared(bench, owner, lose):
    """A4: the last strike has to be its own."""
    job = spared(bench, owner, lose, stopping=True)
    sender = nobodys_app()
    job_recovering.connect(lambda **_: Decision.KILL, sender=sender, weak=False)
    assert bench.driver.kill_if_over_limit(job, sender, Limits.of(bench.config)) is None
    assert bench.driver.kill_if_over_limit(job, sender, Limits(lambda _: None, 20)) is None


#: Its JSON is a message's, and kombu cannot deliver it: a delivery tag has to be hashable.
UNDELIVERABLE = payload(1).replace(b'"tag-1"', b"[]")


@pytest.mark.parametrize("raw", [b"no JSON", b"\xff\x00", b"", UNDELIVERABLE], ids=repr)
def test_what_is_no_message_is_quarantined(bench, owner, raw, caplog, told):
    [claimed] = bench.take(owner, raw)
    dead = bench.driver.kill_unparseable(claimed.job)
    [job] = bench.dead_set.find()
    assert (job.payload, job.reason, job.strikes) == (raw, "unparseable payload", 0)
    assert bench.client.zrange(bench.keys.dead_junk, 0, -1) == [job.id.encode()], "it has its cap"
    assert bench.private(owner) == bench.queue() == []
    assert len(bench.driver) == 0
    assert dead is not None
    assert dead.record() == job.record()
    assert told == [job.id], "by the signal, since no notice is made of it"
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"bytes={len(raw)}, begins={raw[:40]!r}" in line
    assert f"dead show {job.id}`" in line


def test_what_is_no_message_and_was_taken_away_is_not_quarantined(bench, owner, caplog, told):
    [claimed] = bench.take(owner, b"no JSON")
    bench.client.delete(bench.keys.private(owner.owner))
    assert bench.driver.kill_unparseable(claimed.job) is None
    assert (told, list(bench.dead_set.find())) == ([], [])
    assert "Unparseable" not in caplog.text


@pytest.mark.parametrize("by", ["kill", "kill_without_notice"])
def test_a_job_that_never_ran_is_not_under_the_cap_of_those_that_did(bench, owner, told, by):
    """Whoever sends jobs of an unknown task pushes none out that ran."""
    [claimed] = bench.take(owner, payload(1))
    sender = [nobodys_app()] if by == "kill" else []
    dead = getattr(bench.driver, by)(claimed.job, "cannot be received", *sender)
    assert dead is not None
    assert dead.never_ran
    assert bench.client.zrange(bench.keys.dead_never_ran("shop"), 0, -1) == [dead.id.encode()]
    assert told == [dead.id]


def test_a_job_whose_history_changes_at_each_try_to_kill_it_is_requeued(bench, owner, client):
    """It was without a consumer until its process ended."""
    key = bench.keys.history(digest(payload(1)))

    class Changing(Executor):
        @staticmethod
        def notice(queue_list: str) -> bytes:
            client.hincrby(key, "recoveries", 1)  # another owner recovers a copy of it meanwhile
            return b""

    driver = Driver.over(bench.database, Changing())
    bench.push("mail", payload(1))
    [claimed] = driver.claim(owner.owner, ["mail"], 1).jobs
    assert driver.kill(claimed.job, "cannot be received", None) is None
    assert bench.queue() == [payload(1)]
    assert not client.exists(bench.keys.dead)
    assert len(driver) == 0


@pytest.mark.parametrize("notice", [None, b"", b"killed: @dead_id@"])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_lost_reply_to_a_kill_is_no_lost_ownership(
    bench, owner, faults, lost, caplog, told, at, notice
):
    """The job was in the dead set, and was announced as one that may run twice; the line that it is
    dead was missing. At some of the points the server has not carried the kill out."""
    sender, limits = nobodys_app(), Limits.of(bench.config)
    job_recovering.connect(lambda **_: Decision.KILL, sender=sender, weak=False)
    executor = Executor()
    executor.notice = notice if notice is None else lambda queue_list: notice
    database = Database(faults.client, bench.config)
    database.is_registered = bench.database.is_registered
    driver = Driver.over(database, executor)
    bench.push("mail", payload(1))
    [claimed] = driver.claim(owner.owner, ["mail"], 1).jobs
    faults.arm(Fault.LOST, at)
    try:
        dead = driver.recover_or_kill(claimed.job, "pool child lost", sender, limits)
    except redis.ConnectionError:
        faults.disarm()
        dead = driver.recover_or_kill(claimed.job, "pool child lost", sender, limits)
    faults.disarm()
    assert dead is not None
    assert [(job.id, job.strikes) for job in bench.dead_set.find()] == [(dead.id, dead.strikes)]
    assert (lost, len(driver)) == ([], 0)
    # Either the notice tells of it, or the signal does.
    assert (bench.queue(), told) == (
        ([f"killed: {dead.id}".encode()], []) if notice else ([], [dead.id])
    )
    assert caplog.text.count("moved to the dead set") == 1
    assert "Lost ownership" not in caplog.text


# -- what cannot be settled as its app says ----------------------------------------------------


def unknown(task: str | None) -> int:
    """A limit that cannot be told."""
    raise RuntimeError(f"a property of {task}")


FAILING = Limits(unknown, 20, unknown)


def test_a_job_whose_caller_somebody_else_informs_gets_no_notice(bench, owner):
    class Noting(Executor):
        @staticmethod
        def notice(queue_list: str) -> bytes:
            return b"killed: @dead_id@"

    driver = Driver.over(bench.database, Noting())
    bench.push("mail", payload(1), payload(2))
    known, unknown = driver.claim(owner.owner, ["mail"], 2).jobs
    assert driver.kill_without_notice(unknown.job, "unknown task") is not None
    assert bench.queue() == []
    dead = driver.kill(known.job, "cannot be received", nobodys_app())
    assert dead is not None
    assert bench.queue() == [f"killed: {dead.id}".encode()], "the control"


def unmade(queue_list: str) -> bytes:
    """A notice that cannot be made."""
    raise ValueError(queue_list)


def test_a_lost_run_whose_limits_cannot_be_told_ends_by_the_options(bench, owner, lose, caplog):
    """It stayed in the private list, and its worker said: restart me."""
    for strikes in (1, 2, 3):
        [claimed] = bench.take(owner, *[payload(1)][strikes - 1 :])
        dead = bench.driver.recover_or_kill(claimed.job, "lost", nobodys_app(), FAILING)
        assert bench.private(owner) == []
        assert (dead is not None) == (strikes == 3)
    assert "could not be settled as its app says (RuntimeError" in caplog.text
    assert "a property of shop.note" in caplog.text


def test_a_job_over_a_limit_that_cannot_be_told_ends_by_the_options(bench, owner, lose):
    """It ended the worker that had claimed it, and then the next one."""
    job = spared(bench, owner, lose)
    dead = bench.driver.kill_if_over_limit(job, nobodys_app(), FAILING)
    assert dead is not None
    assert len(bench.dead_set) == 1


def test_a_job_whose_notice_cannot_be_made_is_dead_lettered_without(bench, owner):
    executor = Executor()
    executor.notice = unmade
    driver = Driver.over(bench.database, executor)
    bench.push("mail", payload(1))
    [claimed] = driver.claim(owner.owner, ["mail"], 1).jobs
    dead = driver.kill(claimed.job, "cannot be received", nobodys_app())
    assert dead is not None
    assert dead.reason == "cannot be received"
    assert bench.private(owner) == bench.queue() == []
    assert [job.id for job in bench.dead_set.find()] == [dead.id]


@pytest.mark.parametrize("error", [redis.ConnectionError, OSError, MemoryError])
def test_an_error_of_the_server_or_of_the_worker_decides_nothing(bench, owner, error):
    """The control: the job is not to blame, and is settled later."""

    def refused(task: str | None) -> int:
        raise error

    [claimed] = bench.take(owner, payload(1))
    with pytest.raises(error):
        bench.driver.recover_or_kill(claimed.job, "lost", nobodys_app(), Limits(refused, 20))
    assert bench.private(owner) == [payload(1)]


def test_a_recovery_that_the_server_refuses_decides_nothing(bench, owner, lose):
    [claimed] = bench.take(owner, payload(1))
    bench.client.set("mail", "of another program")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        lose(claimed.job)
    assert bench.private(owner) == [payload(1)]
    assert claimed.job in bench.driver
    bench.client.delete("mail")
    assert lose(claimed.job) is None
    assert bench.queue() == [payload(1)]
    assert bench.counters(payload(1)).strikes == 1


def test_this_process_knows_at_once_of_a_job_that_it_put_on_probation(bench, owner, lose):
    """Its next claim of a suspect would else wait for a heartbeat."""
    known = []
    for suspect in (False, True):
        bench.push("mail", payload(suspect))
        if suspect:
            alongside = {"deaths": 1, "strikes": 1, "recoveries": 1, "alongside": 1}
            bench.client.hset(bench.keys.history(digest(payload(True))), mapping=alongside)
            bench.client.set(bench.keys.has_history, 1)
        [claimed] = bench.take(owner)
        assert lose(claimed.job) is None
        known.append({*bench.driver.suspect_lists})
        bench.client.delete("mail")
    assert known == [set(), {"mail"}]


def test_half_a_character_in_the_name_of_a_task_keeps_no_job(bench, owner, lose):
    """JSON can hold it, and no command can: the job stayed with its worker."""
    odd = payload(1, task="shop.\ud800")
    [claimed] = bench.take(owner, odd)
    assert lose(claimed.job) is None
    assert bench.queue() == [odd]
    [again] = bench.take(owner)
    assert bench.driver.kill(again.job, "unreadable", nobodys_app()) is not None
