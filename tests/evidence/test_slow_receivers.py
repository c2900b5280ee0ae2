"""A receiver of a loss, or a log handler, that blocks holds up no heartbeat (C3) and no job."""

from __future__ import annotations

import pytest

from support.waiting import always, eventually

QUICK = {"heartbeat_interval": 0.3, "reap_interval": 600}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("without", ["", "heart_of_its_own"], ids=["heart", "control"])
def test_a_receiver_of_a_loss_that_blocks_leaves_its_owner_heard(
    worker, shop, ledger, db, tmp_path, pool, without
):
    """C3: a worker that was taken for dead says so by a signal. The control is the old way."""
    block = tmp_path / "block"
    block.touch()
    env = {"HAPPENS": "slow_receiver", "BLOCK": str(block), "WITHOUT": without}
    one = worker(pool=pool, options=QUICK, concurrency=1, env=env)
    shop.run("running")
    old = db.owner_of("running")
    db.client.hset(f"superfetch:owner:{old}", "state", "reaped")
    eventually(block.with_suffix(".called").exists, message="it is told")
    [new] = [owner for owner in db.owners() if owner != old]
    if without:
        last = db.heard(new)
        always(lambda: db.heard(new) == last, during=3.0, message="silenced")
    else:
        for _ in range(5):
            before = db.heard(new)
            eventually(lambda before=before: db.heard(new) > before, 5, message="heard again")
    block.unlink()
    ledger.release()
    eventually(lambda: db.heard(new) > 0 and db.stat("ownership_lost") == 1)
    one.stop()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("without", ["", "announcements_outside_of_sends"], ids=["", "control"])
def test_a_receiver_of_a_loss_that_blocks_holds_up_no_other_job(
    worker, shop, ledger, db, tmp_path, pool, without
):
    """The loss is found by the ack of a finished job. In the control the thread that has sent the
    ack calls the receiver, and holds the lock of all jobs in flight meanwhile."""
    block = tmp_path / "block"
    block.touch()
    env = {"HAPPENS": "slow_receiver", "BLOCK": str(block), "WITHOUT": without}
    one = worker(pool=pool, options=QUICK, concurrency=2, env=env)
    shop.run("running")
    db.client.delete(*db.private_lists())
    ledger.release("running")
    eventually(block.with_suffix(".called").exists, message="it is told")
    shop.note.delay("other")
    if without:
        always(lambda: "other" not in ledger.finishes(), during=3.0, message="held up")
    else:
        eventually(lambda: "other" in ledger.finishes(), message="it has run")
        eventually(db.settled, message="and its ack has arrived")
        assert block.exists()
    block.unlink()
    eventually(lambda: db.stat("ownership_lost") == 1 and "other" in ledger.finishes())
    one.stop()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("without", ["", "log_lines_outside_of_sends"], ids=["", "control"])
def test_a_log_handler_that_blocks_holds_up_no_job(
    worker, shop, ledger, db, tmp_path, pool, without
):
    """Redis refuses to schedule a job, and the worker logs that. In the control the thread that has
    the reply writes the line, and holds the lock of all jobs in flight meanwhile."""
    block = tmp_path / "block"
    block.touch()
    env = {"HAPPENS": "slow_log", "BLOCK": str(block), "WITHOUT": without}
    db.client.set("superfetch:parked:celery", "a text")
    one = worker(pool=pool, options=QUICK, concurrency=2, env=env)
    shop.run("running")
    shop.note.apply_async(("later",), countdown=600)
    eventually(block.with_suffix(".called").exists, message="the line is being written")
    ledger.release("running")
    shop.note.delay("other")
    if without:
        always(lambda: "other" not in ledger.finishes(), during=3.0, message="held up")
    else:
        eventually(lambda: {"running", "other"} <= {*ledger.finishes()}, message="they have run")
        eventually(lambda: [*db.held().values()] == [["later"]], message="and are acked")
        assert block.exists()
    block.unlink()
    eventually(lambda: "other" in ledger.finishes())
    db.client.delete("superfetch:parked:celery")
    one.stop()
    assert one.log().count("could not be scheduled for later (jobs=1") == 1
