"""The slot of a cluster: whoever is named, whoever asks, and results beside the jobs."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
from celery import chord, group

import celery_superfetch
from celery_superfetch.app.broker import client_of
from celery_superfetch.console import probe
from celery_superfetch.errors import ConfigError
from support.servers.cluster import Cluster, cluster, is_primary
from support.servers.database import Database
from support.servers.server import Server, free_port
from support.waiting import eventually

PREFIX = "{shop}:"
OPTIONS = {"global_keyprefix": PREFIX}
RESULTS = {"result_backend_transport_options": {"global_keyprefix": PREFIX}}
PASSWORD = "s3cret"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(replicas=1, requirepass=PASSWORD, primaryauth=PASSWORD, appendonly=True) as made:
        yield made


@pytest.fixture
def nodes(running: Cluster) -> Cluster:
    for node in filter(is_primary, running.nodes):
        node.client().flushall()
    return running


def others(nodes: Cluster) -> list[Server]:
    """All nodes but the one that serves the slot."""
    home = nodes.home(PREFIX)
    return [node for node in nodes.nodes if node is not home]


def urls(nodes: list[Server], user: str = "") -> str:
    return ";".join(node.url().replace("redis://:", f"redis://{user}:") for node in nodes)


@pytest.fixture
def place(nodes: Cluster) -> dict[str, Any]:
    """An app that has nothing but the cluster."""
    where = urls(others(nodes)[:2])
    results = f"celery_superfetch:RedisBackend+{where}"
    return {"url": where, "result_url": results, "options": OPTIONS, "conf": RESULTS}


def test_an_app_needs_nothing_but_the_cluster(nodes, worker, make_app, place):
    worker(concurrency=2, **place)
    app = make_app(**place)
    add = app.tasks["shop.add"]
    assert add.delay(2, 3).get(timeout=30) == 5
    assert group(add.s(n, n) for n in range(5))().get(timeout=30) == [0, 2, 4, 6, 8]
    body = app.tasks["celery.accumulate"].s(index=0)
    assert chord([add.s(n, n) for n in range(5)], body)().get(timeout=30) == [0, 2, 4, 6, 8]
    # While somebody waits for them, the slot is handed over, and moved.
    waiting = [add.apply_async((n, 1), countdown=0.5) for n in range(5)]
    nodes.fail_over(PREFIX)
    nodes.move_slot(PREFIX, next(filter(is_primary, others(nodes))))
    assert [one.get(timeout=30) for one in waiting] == [1, 2, 3, 4, 5]
    assert chord([add.s(n, n) for n in range(5)], body)().get(timeout=30) == [0, 2, 4, 6, 8]


def test_results_without_a_tag_are_refused(nodes, make_app):
    where = {"url": urls(others(nodes)), "options": OPTIONS}
    app = make_app(result_url=f"celery_superfetch:RedisBackend+{urls(nodes.nodes)}", **where)
    with pytest.raises(ConfigError, match="Set result_backend_transport_options"):
        app.tasks["shop.add"].delay(1, 2)


def test_celery_s_own_results_on_a_cluster_are_refused_with_the_line_that_mends_it(
    nodes, worker, place
):
    """The job ran, its result could not be stored, and nobody acked it."""
    one = worker(concurrency=1, ready=False, **{**place, "result_url": nodes.nodes[0].url()})
    one.wait_log('Put "celery_superfetch:RedisBackend+" before the URL in result_backend')
    assert one.wait_exit() != 0


def test_every_tool_works_there(nodes, worker, make_app, cli, place):
    worker(concurrency=2, args=["-E"], **place)
    app = make_app(**place)
    events: list[str] = []

    def capture() -> None:
        def heard(event: dict[str, Any]) -> None:
            events.append(event["uuid"])
            receiver.should_stop = True

        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, {"task-received": heard})
            receiver.capture(timeout=20)

    app.tasks["shop.hold"].delay("running")
    there = Database(nodes.client(), PREFIX)
    eventually(lambda: there.owner_of("running"))
    app.tasks["shop.note"].apply_async(("elsewhere",), queue="nobody's")
    monitor = Thread(target=capture)
    monitor.start()
    # It hears what comes from the moment on that it listens.
    eventually(lambda: app.tasks["shop.note"].delay("heard") and events, every=0.2)
    monitor.join()
    assert list(app.control.ping(timeout=10, limit=1)[0].values()) == [{"ok": "pong"}]

    def active() -> list[Any]:
        [jobs] = app.control.inspect(timeout=10, limit=1).active().values()
        return [job["args"] for job in jobs]

    eventually(lambda: active() == [["running"]], message="what was heard of may run until here")
    for command in (["jobs"], ["reap"], ["dead", "list"], ["check", "--this-host"]):
        cli(*command, **place)
    assert "queue nobody's: 1 job" in cli("check", code=2, **place).out
    assert cli("status", "--json", **place).json()["owners"]
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        assert channel.queue_declare("nobody's").message_count == 1
        assert channel.queue_purge("nobody's") == 1
    assert "1 worker" in cli("check", **place).out
    # A user's, of redis-py's own making: the CLI asks the node that owns the slot.
    assert client_of(app).exists(f"{PREFIX}superfetch:owners") == 1


def test_a_probe_without_an_app_finds_the_slot(nodes, url, worker, capsys):
    seed = next(filter(is_primary, others(nodes)))
    worker(concurrency=1, url=seed.url(), result_url=url, options={**OPTIONS, "reap_interval": 1})
    asked = ["--broker", seed.url(), "--prefix", PREFIX, "--timeout", "20"]
    eventually(lambda: probe.main(asked) == 0, message="a pass was made")
    assert "1 worker" in capsys.readouterr().out
    assert probe.main(["--broker", seed.url(), "--timeout", "20"]) == 2
    assert "the broker is a cluster" in capsys.readouterr().out


@pytest.mark.parametrize("named", ["home", "another"])
def test_a_user_who_may_not_ask_about_the_cluster_is_led_by_what_it_answers(
    nodes, url, worker, make_app, named
):
    """And is one owner: it is known for a cluster before the slot has moved, too."""
    for node in nodes.nodes:
        node.client().execute_command(
            "ACL", "SETUSER", "app", "on", f">{PASSWORD}", "~{shop}:*", "&*", "+@all", "-cluster"
        )
    where = urls([nodes.home(PREFIX)] if named == "home" else others(nodes)[:1], user="app")
    place = {"url": where, "result_url": url, "options": OPTIONS}
    worker(pool="threads", concurrency=2, **place)
    app = make_app(**place)
    app.tasks["shop.hold"].delay("held")
    there = Database(nodes.client(), PREFIX)
    owner = eventually(lambda: there.owner_of("held"))
    nodes.fail_over(PREFIX)
    add = app.tasks["shop.add"]
    assert add.delay(2, 3).get(timeout=30) == 5
    nodes.home(PREFIX).client().client_kill_filter(skipme=True)  # its consumer connects again
    assert add.delay(2, 4).get(timeout=30) == 6
    assert there.owners() == [owner]


def test_of_nodes_that_are_gone_another_is_asked(nodes, url, worker, make_app):
    gone = f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0"
    place = {"url": f"{gone};{urls(others(nodes)[:1])}", "result_url": url, "options": OPTIONS}
    worker(concurrency=1, **place)
    assert make_app(**place).tasks["shop.add"].delay(2, 3).get(timeout=30) == 5


def test_a_cluster_behind_tls(url, worker, make_app, behind_tls, certificate):
    """MOVED and CLUSTER SLOTS name the ports behind which there is TLS."""
    with cluster() as made:
        ports = {}
        for node in made.nodes:
            ports[node] = behind_tls(node)
            node.client().config_set("cluster-announce-port", ports[node])
        home = made.home(PREFIX)
        seed = next(port for node, port in ports.items() if node is not home)
        query = f"ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={certificate[0]}"
        place = {
            "url": f"rediss://127.0.0.1:{seed}/0?{query}",
            "result_url": url,
            "options": OPTIONS,
        }
        eventually(lambda: made.tell(made.nodes[0], "SLOTS")[0][2][1] == ports[made.nodes[0]])
        worker(concurrency=1, **place)
        assert make_app(**place).tasks["shop.add"].delay(2, 3).get(timeout=30) == 5


def test_control_a_connection_that_does_not_follow_is_of_no_use(nodes, make_app, url, monkeypatch):
    monkeypatch.setattr(celery_superfetch.Transport.Channel, "_slot", lambda *_: None)
    seed = next(filter(is_primary, others(nodes)))
    place = {"url": seed.url(), "result_url": url, "options": OPTIONS}
    with pytest.raises(celery_superfetch.UnsupportedBroker):
        make_app(**place).tasks["shop.add"].delay(2, 3)
