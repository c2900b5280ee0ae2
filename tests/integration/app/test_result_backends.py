"""A success that the result backend on Redis has is undone by nothing that comes late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pytest
from celery import Celery, Task, states
from celery.backends.redis import RedisBackend
from redis.exceptions import ResponseError

from celery_superfetch.app.result_backends import asked_once, patch_backends_of_tasks
from support.servers.managed import ManagedProxy, Manners
from support.servers.proxy import FaultProxy
from support.servers.server import Server
from support.waiting import eventually


@pytest.fixture
def results(fresh_server: Callable[..., Server]) -> Iterator[tuple[Server, FaultProxy]]:
    server = fresh_server()
    with FaultProxy(server.port) as proxy:
        yield server, proxy


def stored(app: Celery) -> str:
    return str(app.backend.get_state("job"))


def overtaken(late: Celery, other: Celery, proxy: FaultProxy, state: str) -> str:
    """One that has asked whether its job has succeeded, and is to store its own state, is cut off
    just then; its successor tells of the success; what the caller is told in the end."""
    assert stored(late) == states.PENDING  # it is connected
    cut = proxy.cut_at(lambda words: words[0] in (b"MULTI", b"EVALSHA"), reply_lost=False)
    proxy.refuse()
    store = threading.Thread(
        target=late.backend.store_result, args=("job", ValueError("late"), state)
    )
    store.start()
    assert cut.wait(30)
    other.backend.store_result("job", 5, states.SUCCESS)
    proxy.heal()
    store.join()
    return stored(other)


@pytest.mark.parametrize("state", [states.RETRY, states.FAILURE])
@pytest.mark.parametrize("superfetch", [True, False], ids=["", "control: stock"])
def test_a_success_outlives_what_was_to_be_stored_before_it(make_app, results, superfetch, state):
    server, proxy = results
    late = make_app(superfetch=superfetch, conf={"result_backend": proxy.url()})
    other = make_app(superfetch=superfetch, conf={"result_backend": server.url()})
    assert overtaken(late, other, proxy, state) == (states.SUCCESS if superfetch else state)


def test_where_scripts_are_forbidden_it_is_stored_by_plain_commands(make_app, fresh_server):
    server = fresh_server()
    server.client().execute_command("ACL SETUSER plain on >pw ~* &* +@all -@scripting")
    url = server.url().replace("redis://", "redis://plain:pw@")
    app = make_app(conf={"result_backend": url})
    app.backend.store_result("job", ValueError("no"), states.FAILURE)
    assert stored(app) == states.FAILURE


@pytest.mark.parametrize("expires", [None, 90])
def test_what_is_no_success_is_stored_and_told_as_ever(make_app, client, url, expires):
    conf: dict[str, Any] = {"result_backend": url, "result_expires": expires}
    facts = []
    for superfetch in (True, False):
        app = make_app(superfetch=superfetch, conf=conf)
        told = client.pubsub(ignore_subscribe_messages=True)
        told.subscribe("celery-task-meta-job")
        told.get_message(timeout=10)
        app.backend.store_result("job", ValueError("no"), states.FAILURE)
        text = client.get("celery-task-meta-job")
        message = eventually(told.get_message)
        assert message["data"] == text
        meta = {**app.backend.decode(text), "date_done": ""}
        facts.append((meta, client.ttl("celery-task-meta-job") > 0))
        app.backend.store_result("job", 5, states.SUCCESS)
        assert stored(app) == states.SUCCESS
        client.delete("celery-task-meta-job")
    assert facts[0] == facts[1]
    assert facts[0][1] is (expires is not None)


@pytest.mark.parametrize("expires", [{}, {"result_failure_expires": 0}, {"result_expires": None}])
def test_a_failure_is_kept_for_as_long_as_with_stock(make_app, fresh_server, expires):
    """0 is for ever, for Celery as from 5.7."""
    server = fresh_server()
    conf = {"result_backend": server.url(), "result_expires": 3600, **expires}
    kept = []
    for superfetch in (True, False):
        app = make_app(superfetch=superfetch, conf=conf)
        app.backend.store_result("job", ValueError("no"), states.FAILURE)
        kept.append(server.client().ttl(app.backend.get_key_for_task("job")))
        server.client().flushall()
    assert (kept[0] < 0) == (kept[1] < 0), kept


def test_the_backend_that_a_task_computes_keeps_a_success(make_app, url):
    """A property that fails stands in the way of no other."""

    class Own(Task):
        @cached_property
        def backend(self) -> Any:
            return RedisBackend(app=self.app, url=url)

    class Fails(Task):
        @property
        def backend(self) -> Any:
            raise RuntimeError("not yet")

    def job() -> None: ...

    app = make_app()
    for base in (Fails, Own):
        app.task(name=base.__name__, base=base, shared=False)(job)
    patch_backends_of_tasks(app)
    backend = app.tasks["Own"].backend
    backend.store_result("job", 5, states.SUCCESS)
    backend._set(backend.get_key_for_task("job"), '{"status": "RETRY"}')
    assert backend.get_task_meta("job", cache=False)["status"] == states.SUCCESS


def test_a_result_server_that_refuses_all_of_a_new_connection_is_asked_again(
    make_app, fresh_server
):
    """While a script runs, Redis answers BUSY to the first commands of a connection, too. Each was
    taken for a reason to connect again, without end: a job that had succeeded had failed."""
    server = fresh_server()
    busy = Manners(unknown=("SET", "CLIENT|SETINFO"), refusal="BUSY Redis is busy (%s)")
    with ManagedProxy(server.port, Manners()) as proxy:
        client = make_app(conf={"result_backend": proxy.url()}).backend.client
        client.set("key", "before")
        proxy.manners = busy
        connected = server.client().info("stats")["total_connections_received"]
        for _ in range(3):
            with pytest.raises(ResponseError, match="BUSY"):
                client.set("key", "refused")
        proxy.manners = Manners()
        client.set("key", "after")
        made = server.client().info("stats")["total_connections_received"] - connected
    assert server.client().get("key") == b"after"
    assert made <= 3 + 2, "one for each refusal, and those of this test"


def test_the_last_of_two_that_ask_a_backend_once_restores_the_retries(make_app):
    """The second had read the setting of the first, and restored that: no more was retried."""
    backend = make_app(conf={"result_backend_always_retry": True}).backend
    first, second = asked_once(backend), asked_once(backend)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert backend.always_retry is False
    second.__exit__(None, None, None)
    assert backend.always_retry is True
