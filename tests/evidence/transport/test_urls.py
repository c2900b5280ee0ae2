"""Every way to name a broker that stock kombu knows works with a real worker, too."""

from __future__ import annotations

from typing import Any

from celery_superfetch.app.broker import client_of
from support.servers.server import Server, free_port
from support.waiting import eventually
from support.workers.worker import Worker


def served(worker: Any, make_app: Any, own: Server, url: str, **settings: Any) -> Worker:
    """A worker on ``url`` runs a job that a producer on ``url`` sent."""
    settings = {"url": url, "result_url": own.url(1), **settings}
    process = worker(concurrency=1, **settings)
    app = make_app(**settings)
    assert app.tasks["shop.add"].delay(2, 3).get(timeout=30) == 5
    assert own.client().zcard("superfetch:owners"), "the job was not fetched by our transport"
    return process


def test_a_unix_socket(worker, make_app, fresh_server):
    own = fresh_server(unixsocket=True)
    served(worker, make_app, own, own.unix_url())


def test_a_password_and_a_database_number(worker, make_app, fresh_server):
    own = fresh_server(requirepass="s3cret")
    process = worker(concurrency=1, url=own.url(3), result_url=own.url(1), ledger_url=own.url(9))
    app = make_app(url=own.url(3), result_url=own.url(1), ledger_url=own.url(9))
    assert app.tasks["shop.add"].delay(2, 3).get(timeout=30) == 5
    assert own.client(3).exists("superfetch:owners")
    assert not own.client(0).exists("superfetch:owners")
    process.term()
    assert process.wait_exit() == 0


def test_an_acl_user(worker, make_app, fresh_server):
    own = fresh_server()
    own.client().execute_command("ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all")
    served(worker, make_app, own, f"redis://shop:pw@127.0.0.1:{own.port}/0")


def test_an_acl_user_without_dangerous_commands(worker, make_app, fresh_server):
    """CLIENT LIST, KILL, UNBLOCK and INFO are forbidden: verdicts wait longer, nothing breaks."""
    own = fresh_server()
    own.client().execute_command(
        "ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all", "-@dangerous", "+keys"
    )
    process = served(
        worker, make_app, own, f"redis://shop:pw@127.0.0.1:{own.port}/0", ledger_url=own.url(9)
    )
    process.term()
    assert process.wait_exit() == 0


def test_an_acl_user_who_may_touch_only_its_own_keys(worker, make_app, fresh_server):
    own = fresh_server()
    patterns = ["~celery*", "~_kombu*", "~superfetch:*", "~*.pidbox*"]
    own.client().execute_command("ACL", "SETUSER", "shop", "on", ">pw", *patterns, "&*", "+@all")
    process = served(
        worker, make_app, own, f"redis://shop:pw@127.0.0.1:{own.port}/0", ledger_url=own.url(9)
    )
    process.term()
    assert process.wait_exit() == 0
    assert not own.client().exists("superfetch:owners")


def test_a_failover_list_keeps_the_transport_after_a_switch(worker, make_app, fresh_server):
    own = fresh_server()
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    url = f"{nobody};{own.url()}"
    conf = {"broker_connection_max_retries": 50}
    process = worker(
        concurrency=1, url=url, result_url=own.url(1), ledger_url=own.url(9), conf=conf
    )
    app = make_app(url=own.url(), result_url=own.url(1), ledger_url=own.url(9))
    assert app.tasks["shop.add"].delay(2, 3).get(timeout=60) == 5
    eventually(lambda: own.client().zcard("superfetch:owners") == 1, within=10)
    process.term()
    assert process.wait_exit() == 0


def test_the_last_of_a_long_failover_list_is_found(make_app, fresh_server):
    """By what makes clients of its own, as kombu's consumers do: they try all of them."""
    own = fresh_server()
    gone = [f"redis://127.0.0.1:{free_port()}/0" for _ in range(3)]
    assert client_of(make_app(url=";".join([*gone, own.url()]))).ping()


def test_rediss_has_stock_kombus_tls_defaults(worker, make_app, tls_port):
    own, port = tls_port
    process = served(worker, make_app, own, f"rediss://127.0.0.1:{port}/0", ledger_url=own.url(9))
    process.term()
    assert process.wait_exit() == 0
