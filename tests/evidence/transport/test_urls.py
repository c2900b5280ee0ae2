"""Every way to name a broker that stock kombu knows works with a real worker, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_superfetch.app.broker import client_of
from support.servers.server import Server, free_port
from support.waiting import eventually

#: What a user may do. Without dangerous commands (CLIENT LIST, KILL, UNBLOCK and INFO) verdicts
#: wait longer, and nothing breaks.
ALLOWED = {
    "everything": "~* +@all",
    "nothing dangerous": "~* +@all -@dangerous +keys",
    "its own keys": "~celery* ~_kombu* ~superfetch:* ~*.pidbox* +@all",
}


@pytest.fixture
def serves(worker: Any, make_app: Any) -> Callable[..., None]:
    """`serves(own, url)`: a worker on ``url`` runs a job that a producer has sent there, or by
    ``sent``, and leaves in order."""

    def check(own: Server, url: str, db: int = 0, sent: str = "", **settings: Any) -> None:
        settings = {"result_url": own.url(1), "ledger_url": own.url(9), **settings}
        one, client = worker(url=url, concurrency=1, **settings), own.client(db)
        app = make_app(url=sent or url, **settings)
        assert app.tasks["shop.add"].delay(2, 3).get(timeout=60) == 5
        eventually(lambda: client.zcard("superfetch:owners") == 1, message="it is fetched by ours")
        assert not (db and own.client().exists("superfetch:owners"))
        one.stop()
        assert not client.exists("superfetch:owners")

    return check


def test_a_unix_socket(serves, fresh_server):
    own = fresh_server(unixsocket=True)
    serves(own, own.unix_url())


def test_a_password_and_a_database_number(serves, fresh_server):
    own = fresh_server(requirepass="s3cret")
    serves(own, own.url(3), db=3)


@pytest.mark.parametrize("allowed", ALLOWED)
def test_an_acl_user(serves, fresh_server, allowed):
    own = fresh_server()
    rules = ["on", ">pw", "&*", *ALLOWED[allowed].split()]
    own.client().execute_command("ACL", "SETUSER", "shop", *rules)
    serves(own, f"redis://shop:pw@127.0.0.1:{own.port}/0")


def test_a_failover_list_keeps_the_transport_after_a_switch(serves, fresh_server):
    own = fresh_server()
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    conf = {"broker_connection_max_retries": 50}
    serves(own, f"{nobody};{own.url()}", sent=own.url(), conf=conf)


def test_the_last_of_a_long_failover_list_is_found(make_app, fresh_server):
    """By what makes clients of its own, as kombu's consumers do: they try all of them."""
    own = fresh_server()
    gone = [f"redis://127.0.0.1:{free_port()}/0" for _ in range(3)]
    assert client_of(make_app(url=";".join([*gone, own.url()]))).ping()


def test_rediss_has_stock_kombus_tls_defaults(serves, tls_port):
    own, port = tls_port
    serves(own, f"rediss://127.0.0.1:{port}/0")
