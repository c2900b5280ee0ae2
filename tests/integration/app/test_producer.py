"""A pure producer: no owner, no thread, no key of ours, and none of the worker's modules."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import textwrap
from typing import Any

import kombu
import pytest

from support.workers.worker import process_env

REPORT = """
import json, sys, threading
print(json.dumps({
    "threads": [t.name for t in threading.enumerate()],
    "modules": sorted(m for m in sys.modules if m.startswith("celery_superfetch")),
}))
"""


def run(url: str, code: str) -> dict[str, Any]:
    """What a fresh process says of itself after running this code."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code) + REPORT],
        env=process_env({"URL": url}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_importing_the_package_costs_nothing():
    report = run("", "import celery_superfetch")
    assert report["modules"] == ["celery_superfetch"]
    assert report["threads"] == ["MainThread"]


def test_an_installed_app_that_publishes_is_nobodys_owner(url, bench):
    report = run(
        url,
        """
        import os
        from celery import Celery
        import celery_superfetch
        app = celery_superfetch.install(Celery("shop", broker=os.environ["URL"]))
        @app.task(name="shop.note")
        def note(job): ...
        for n in range(10):
            note.delay(n)
        note.apply_async(("later",), countdown=60, priority=3)
        """,
    )
    assert report["threads"] == ["MainThread"]
    assert len(bench.queue("celery")) == 10
    assert len(bench.queue("celery\x06\x163")) == 1
    assert not {name for name in bench.key_names() if "superfetch" in name}


@pytest.mark.parametrize("send", ["note.delay(1)", "app.send_task('shop.note', [1])"])
def test_a_producer_keeps_the_options_of_install(url, client, send):
    """Its jobs went to a key that no worker reads: a worker sets the options once more."""
    run(
        url,
        f"""
        import os
        from celery import Celery
        import celery_superfetch
        app = Celery("shop", broker=os.environ["URL"])
        celery_superfetch.install(app, global_keyprefix="prod:", priority_steps=[0, 9])
        @app.task(name="shop.note")
        def note(job): ...
        app.conf.timezone  # is read, so that the app is configured
        app.conf.broker_transport_options = {{"visibility_timeout": 3600}}
        {send}
        app.conf.broker_transport_options = {{"sep": ":"}}
        note.apply_async((2,), priority=9)
        with app.connection_for_write(transport_options={{"socket_timeout": 7}}) as connection:
            options = connection.transport_options
            assert (options["socket_timeout"], options["sep"]) == (7, ":")
            assert options["global_keyprefix"] == "prod:"
        """,
    )
    assert not client.exists("celery")
    assert client.llen("prod:celery") == 1


def test_a_producer_on_windows_publishes(url, bench):
    """E3. As far as it can be had here: what Python lacks there is taken away first."""
    run(
        url,
        """
        import os, signal
        for module, names in {
            os: "fork forkpty register_at_fork getuid geteuid getgid getegid getpgid setsid killpg",
            signal: "SIGQUIT SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGCHLD",
        }.items():
            for name in names.split():
                delattr(module, name)
        from celery import Celery
        import celery_superfetch
        app = celery_superfetch.install(Celery("shop", broker=os.environ["URL"]))
        app.send_task("shop.note", ("a",))
        """,
    )
    assert len(bench.queue("celery")) == 1


def test_what_stock_kombu_ignores_stops_no_producer(url, bench):
    """E2. What is nearly one of ours is said; a worker refuses to start with it."""
    run(
        url,
        """
        import os
        import celery_superfetch
        from celery import Celery
        app = Celery("shop", broker=os.environ["URL"])
        app.conf.broker_transport_options = {"confirm_publish": True, "owner_tll": 60}
        celery_superfetch.install(app)
        app.send_task("shop.note", ("a",))
        try:
            app.WorkController().start()
        except SystemExit as exc:
            assert "unknown option 'owner_tll'" in str(exc), exc
        else:
            raise AssertionError("it started")
        """,
    )
    assert len(bench.queue("celery")) == 1


def test_with_the_named_transport_a_producer_needs_nothing_but_it(url, bench):
    report = run(
        url,
        """
        import os
        from celery import Celery
        app = Celery("shop", broker=os.environ["URL"])
        app.conf.broker_transport = "celery_superfetch:Transport"
        app.send_task("shop.note", ("a",))
        """,
    )
    assert len(bench.queue("celery")) == 1
    assert report["threads"] == ["MainThread"]
    others = {"reaper.reaper", "app", "worker", "cli"}
    loaded = {name.partition(".")[2] for name in report["modules"]}
    assert not others & loaded
    assert not {name for name in bench.key_names() if "superfetch" in name}


def test_what_is_published_is_what_stock_kombu_publishes(url, bench):
    code = """
        import os
        import kombu
        with kombu.Connection(os.environ["URL"], transport={transport!r}) as connection:
            with connection.SimpleQueue("mail") as queue:
                queue.put({{"a": [], "b": "ö"}}, serializer="json", headers={{"id": "1"}})
    """
    run(url, code.format(transport=None))
    run(url, code.format(transport="celery_superfetch:Transport"))
    stock, ours = (json.loads(raw) for raw in bench.queue())
    for message in (stock, ours):
        assert message["properties"].pop("delivery_tag")
    assert ours == stock


@pytest.mark.parametrize(
    ("transport", "published"), [("celery_superfetch:Transport", 1), ("redis", 0)]
)
def test_a_producer_goes_on_when_another_thread_closes_its_channel(
    url, bench, transport, published
):
    """As when a worker's connections are closed while a task sends its own retry."""
    with kombu.Connection(url, transport=transport) as connection:
        producer = connection.Producer(routing_key="mail")
        producer.channel.close()
        with contextlib.ExitStack() as stack:
            if not published:  # the control: stock kombu does not know the error
                stack.enter_context(pytest.raises(AttributeError))
            producer.publish({"n": 1}, retry=True, retry_policy={"max_retries": 2})
    assert len(bench.queue("mail")) == published
