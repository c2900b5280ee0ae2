"""What a worker says at its start, and how often it says the same."""

from __future__ import annotations

from celery import Celery

from celery_superfetch import __version__
from support.servers.faults import kill_connections
from support.waiting import eventually


def test_one_line_at_the_start_says_what_a_worker_goes_by(worker, client, db):
    """E7. Once, also when it loses its connection."""
    options = {"owner_ttl": 45, "strike_limit": 5}
    one = worker(options=options, conf={"task_reject_on_worker_lost": False})
    [owner] = db.owners()
    kill_connections(client)
    eventually(lambda: one.log().count("Connected to redis") >= 2)
    lines = [line for line in one.log().splitlines() if f"celery_superfetch {__version__}" in line]
    [line] = lines
    said = "owner_ttl=45 s", "strike_limit=5", "strike_window=72 h", "task_acks_late=on"
    for part in (f"owner={owner}", *said, "task_reject_on_worker_lost=off"):
        assert part in line, part
    assert "INFO" in line


def test_another_broker_is_warned_of_once(worker):
    """E7. A worker asks for its transport seventeen times at its start."""
    one = worker(url="memory://", result_url="", pool="solo")
    assert one.log().count("has no effect: the broker is") == 1


def test_a_worker_of_another_broker_runs_with_the_options_of_that(worker, ledger, tmp_path):
    """C5. They are none of ours, whatever they are called; it refused to start."""
    folders = {f"data_folder_{way}": str(tmp_path) for way in ("in", "out")}
    options = {**folders, "control_folder": str(tmp_path / "control"), "owner_ttls": 1}
    conf = {"broker_transport_options": options, "worker_enable_remote_control": False}
    one = worker(url="filesystem://", result_url="", pool="solo", conf=conf)
    app = Celery("producer", broker="filesystem://", set_as_current=False)
    app.conf.update(conf)
    app.send_task("shop.note", ("a",))
    eventually(lambda: ledger.runs() == {"a": 1})
    one.stop()


def test_options_of_another_broker_stop_no_worker_and_are_named_once(worker, shop, ledger):
    """C5. Stock ignores them."""
    foreign = {"confirm_publish": True, "predefined_queues": {}, "retry_policy": {"timeout": 5.0}}
    one = worker(conf={"broker_transport_options": foreign})
    shop.note.delay("a")
    eventually(lambda: ledger.runs() == {"a": 1})
    assert (
        one.log().count(
            "have no effect with Redis: confirm_publish, predefined_queues, retry_policy"
        )
        == 1
    )
