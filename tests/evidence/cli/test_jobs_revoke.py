"""`celery superfetch jobs revoke`: by filter, by id, and where no worker hears it."""

from __future__ import annotations

import pytest

from celery_superfetch.store.audit_list import AuditList
from support.waiting import eventually
from support.workers.bench import payload


def test_jobs_that_match_are_revoked_after_a_question_with_their_count(
    cli, worker, shop, bench, ledger
):
    worker(concurrency=1).wait_ready()
    later = [shop.note.apply_async((f"n{n}",), countdown=3600) for n in range(3)]
    shop.add.apply_async((1, 2), countdown=3600)
    eventually(lambda: sum(bench.parked.sizes(bench.parked.lists()).values()) == 4)
    filters = "--state", "scheduled", "--task", "*note"
    refused = cli("jobs", "revoke", *filters, answer="n\n", code=1)
    assert "Revoke 3 jobs (state scheduled, task *note)?" in refused.err
    inspect = shop.note.app.control.inspect(timeout=5)
    assert [*inspect.revoked().values()] == [[]]
    done = cli("jobs", "revoke", *filters, "--yes", "--json").json()
    assert done == {"revoked": 3, "of": 3, "warnings": []}
    [revoked] = inspect.revoked().values()
    assert {*revoked} == {result.id for result in later}, "and no other job"
    [entry] = AuditList(bench.database).newest(0, 9)
    assert (entry.action, entry.subject) == ("jobs revoke", "state scheduled, task *note")
    assert (entry.total, entry.done, entry.outcome) == (
        3,
        3,
        "Told 1 worker to revoke 3 of 3 jobs",
    )


def test_waiting_jobs_of_a_queue_and_a_running_one_by_its_id(cli, worker, shop, bench, ledger):
    worker(concurrency=1)
    runs = shop.hold.delay("h")
    eventually(lambda: ledger.starts().get("h"))
    done = cli("jobs", "revoke", runs.id, "--terminate", "--yes")
    assert done.out == "Told 1 worker to revoke 1 of 1 job.\n"
    eventually(lambda: not bench.lists.held(next(iter(bench.registry.owners()))).claims)
    bench.paused.pause("celery", "ann")
    for number in range(3):
        shop.note.delay(f"n{number}")
    shop.add.delay(1, 2)
    eventually(lambda: bench.client.llen("celery") == 4, message="a read may have moved one")
    done = cli(
        "jobs", "revoke", "--state", "waiting", "--queue", "celery", "--task", "*note", "--yes"
    )
    assert done.out == "Told 1 worker to revoke 3 of 3 jobs.\n"
    shop.note.delay("control")
    bench.paused.resume("celery")
    eventually(lambda: "control" in ledger.starts(), 60)
    assert {*ledger.starts()} <= {"h", "control"}, "the others were discarded"


def test_a_revoke_that_no_worker_hears_fails_and_is_on_the_list(cli, bench):
    bench.push("mail", payload("a"))
    bench.owner(lists=["mail"])
    failed = cli("jobs", "revoke", "--state", "waiting", "--queue", "mail", "--yes", code=1)
    assert "no worker answered" in failed.err
    [entry] = AuditList(bench.database).newest(0, 9)
    assert (entry.state, entry.done) == ("failed", 0)
    assert cli("jobs", "revoke", "--task", "nobody").out == "Revoked 0 of 0 jobs.\n"
    assert len(AuditList(bench.database).ids()) == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "no jobs selected"),
        (["a", "--queue", "mail"], "not both"),
        (["--state", "waiting"], "--queue NAME"),
        (["--state", "waiting", "--queue", "mail", "--node", "w1"], "--queue NAME"),
        (["--state", "waiting", "--queue", "nowhere"], "is unknown"),
    ],
)
def test_bad_input_is_refused(cli, args, said):
    refused = cli("jobs", "revoke", *args, code=None)
    assert refused.code in (1, 2)
    assert said in " ".join(refused.err.split())
