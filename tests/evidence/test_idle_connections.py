"""A server that closes connections which lie idle, sooner than a heartbeat uses them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.hosts import Host
from support.servers.database import Database
from support.servers.server import Server
from support.waiting import always, eventually
from support.workers.worker import Worker

#: The server's `timeout` (s): it closes what lay idle for longer, within the next second.
IDLE = 1
INTERVAL = 3
SLOW = {"heartbeat_interval": INTERVAL, "owner_ttl": 7, "reap_interval": 1}
RECONNECTS = "Connection to broker lost"
CONTROL = 2  # the database of those that go without the safety
IDLE_CLIENT = 3  # of the one that keeps kombu's connection for replies


@pytest.fixture
def own(fresh_server: Callable[..., Server]) -> Server:
    return fresh_server(timeout=IDLE)


@pytest.fixture
def dbs(own: Server) -> dict[int, Database]:
    clients = {db: own.client(db, health_check_interval=1) for db in (0, CONTROL)}
    return {db: Database(client) for db, client in clients.items()}


@pytest.fixture
def start(own: Server, worker: Callable[..., Worker]) -> Callable[..., list[Worker]]:
    """`start({0: "", 2: "safety"}, ...)`: in each database a worker without some safety."""

    def begin(databases: dict[int, str], host: str = "", **settings: Any) -> list[Worker]:
        return [
            worker(
                url=own.url(db),
                result_url=own.url(1),
                options=SLOW,
                host=Host(host) if host else None,
                env={"WITHOUT": without},
                ready=False,
                **{"concurrency": 1, **settings},
            )
            for db, without in databases.items()
        ]

    return begin


@pytest.mark.netns
def test_a_dead_host_is_found_although_each_heartbeat_connects_anew(
    own, dbs, start, make_app, ledger
):
    """Without a second try each heartbeat fails, and ends the staleness that was watched so far."""
    pairs = {0: "", CONTROL: "repeated_heartbeats"}
    victims = start(pairs, "victim", queues=["held"])
    watchers = start(pairs, "watcher", pool="threads", queues=["held"])
    for one in victims:
        one.wait_ready()
    held = {db: make_app(superfetch=False, url=own.url(db)).tasks["shop.hold"] for db in pairs}
    for one in watchers:
        one.wait_ready()
    for db, hold in held.items():
        for n in range(2):  # one for each
            hold.apply_async((f"{db}-{n}", 600), queue="held")
    eventually(lambda: len(ledger.starts()) == 4)
    owners = {db: next(o for o in dbs[db].owners() if o.startswith("victim|")) for db in pairs}
    for one in victims:
        one.kill9_all()
    last = {db: dbs[db].heard(owner) for db, owner in owners.items()}
    eventually(lambda: dbs[0].fact(owners[0], "state") == "reaped", message="it is found")
    always(lambda: dbs[CONTROL].heard(owners[CONTROL]) == last[CONTROL], during=2 * INTERVAL)
    assert dbs[CONTROL].fact(owners[CONTROL], "state") == "running", "it is never found"
    ledger.release()
    eventually(lambda: {"0-0", "0-1"} <= ledger.finishes().keys())
    runs = ledger.runs()
    assert sorted(runs[f"0-{n}"] for n in range(2)) == [1, 2]
    assert sorted(runs[f"{CONTROL}-{n}"] for n in range(2)) == [1, 1]
    log, of_control = (one.log() for one in watchers)
    assert "Heartbeat failed" not in log
    assert "Heartbeat failed" in of_control
    assert RECONNECTS not in log


@pytest.mark.netns
def test_a_blocked_gevent_worker_is_heard(own, dbs, start, make_app, ledger, tmp_path):
    """While its hub is blocked no greenlet can open another connection: what was closed once is
    used often enough from then on."""
    pairs = {0: "", CONTROL: "warm_pulses"}
    workers = start(pairs, "blocked", pool="gevent", app="features", queues=["held"])
    workers += start(pairs, "watcher", pool="threads", queues=["none"])
    for one in workers:
        one.wait_ready()
    owners = {db: next(o for o in dbs[db].owners() if o.startswith("blocked|")) for db in pairs}

    def is_heard(*databases: int, times: int = 3) -> None:
        for _ in range(times):
            before = {db: dbs[db].heard(owners[db]) for db in databases}
            eventually(
                lambda before=before: all(dbs[d].heard(owners[d]) > before[d] for d in before)
            )

    is_heard(*pairs)
    for db in pairs:
        app = make_app(superfetch=False, url=own.url(db))
        end = tmp_path / str(db)
        app.send_task("features.burn", (f"burns-{db}", str(end)), queue="held")
    eventually(lambda: len(ledger.starts()) == 2)
    eventually(lambda: dbs[CONTROL].fact(owners[CONTROL], "state") == "reaped")
    is_heard(0)
    assert dbs[0].fact(owners[0], "state") == "running"
    for db in pairs:
        (tmp_path / str(db)).touch()
    eventually(lambda: "burns-0" in ledger.finishes())
    assert ledger.runs()["burns-0"] == 1


def test_idle_workers_keep_their_connection_for_a_minute(own, start, make_app, ledger):
    """A service that closes after 300 s what lies idle does to a worker within hours what a server
    that closes it after 2 s does within this minute."""
    own.client().config_set("timeout", 2)
    pools = ["prefork", "threads", "solo", "gevent"]
    workers = [start({0: ""}, pool=pool, queues=[pool], neighbours=True)[0] for pool in pools]
    [control] = start({IDLE_CLIENT: "closed_clients"}, pool="gevent", neighbours=True)
    for one in (*workers, control):
        one.wait_ready()

    def is_quiet() -> bool:
        troubles = ("Heartbeat failed", "Maintenance cannot", RECONNECTS)
        return not any(trouble in one.log() for one in workers for trouble in troubles)

    always(is_quiet, 60, 0.5, message="no worker has lost a connection")
    assert RECONNECTS in control.log()
    hold = make_app(superfetch=False, url=own.url(0)).tasks["shop.hold"]
    for pool in pools:
        hold.apply_async((pool, 0), queue=pool)
    eventually(lambda: ledger.finishes().keys() == set(pools))
    assert is_quiet()


def test_idle_connections_cost_no_reconnect(own, start, make_app, ledger):
    """A solo worker comes back from a long job to reads that were closed meanwhile. At its start
    each has asked its neighbours, whose replies come by a queue without acks: kombu would watch the
    connection of these for ever, and take its end for that of the broker."""
    pools = ["prefork", "threads", "solo", "gevent"]
    many = [f"queue-{n}" for n in range(20)]  # the server tells of some
    workers = {pool: start({0: ""}, pool=pool, queues=[pool], neighbours=True)[0] for pool in pools}
    workers["many"] = start({0: ""}, pool="threads", queues=["many", *many])[0]
    [control] = start({CONTROL: "looks_at_idle_reads"}, pool="solo", queues=["solo"])
    [watching] = start({IDLE_CLIENT: "closed_clients"}, pool="gevent", neighbours=True)
    for one in (*workers.values(), control, watching):
        one.wait_ready()
    tasks = {db: make_app(superfetch=False, url=own.url(db)).tasks for db in (0, CONTROL)}

    def run(names: dict[str, int], seconds: float) -> None:
        for name, db in names.items():
            queue = name.partition("-")[0]
            tasks[db]["shop.hold"].apply_async((name, seconds), queue=queue)
        eventually(lambda: names.keys() <= ledger.finishes().keys(), 60)

    for n in range(2):
        for seconds in (0, 3 * IDLE):
            names = {f"{queue}-{n}-{seconds}": 0 for queue in workers}
            run({**names, f"solo-{n}-{seconds}-control": CONTROL}, seconds)
    control.wait_log(RECONNECTS)
    watching.wait_log(RECONNECTS)
    assert set(ledger.runs().values()) == {1}
    for one in workers.values():
        log = one.log()
        for trouble in ("Heartbeat failed", "Maintenance cannot", RECONNECTS):
            assert trouble not in log
