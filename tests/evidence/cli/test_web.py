"""`celery superfetch web`: the page as a command serves it, and what it refuses to serve."""

from __future__ import annotations

import signal
import socket

import httpx

from support.process import Process
from support.servers.server import free_port
from support.waiting import eventually
from support.workers.cli import superfetch_command
from support.workers.worker import process_env


def test_it_serves_who_has_the_token_until_it_is_told_to_stop(env, bench, tmp_path):
    bench.owner(node="w1@host")
    port, token = free_port(), "correct-horse-battery"
    command = superfetch_command("web", "--host", "0.0.0.0", "--port", str(port))
    environ = process_env({**env(), "SUPERFETCH_WEB_TOKEN": token})
    with Process(command, log=tmp_path / "web.log", env=environ) as serving:
        url = f"http://127.0.0.1:{port}/"
        eventually(lambda: httpx.get(url).status_code == 401)
        page = httpx.get(url, headers={"authorization": f"Bearer {token}"})
        assert "w1@host" in page.text
        assert "server" not in page.headers
        serving.signal(signal.SIGINT)
        assert serving.wait_exit() == 0
        assert "Traceback" not in serving.log()


def test_it_is_not_served_to_others_without_a_token(cli, url):
    refused = cli("web", "--host", "0.0.0.0", code=2)
    assert (
        "0.0.0.0 can be reached from other hosts: set --token or SUPERFETCH_WEB_TOKEN"
        in refused.err
    )
    refused = cli("web", "--host", "0.0.0.0", "--token", "short", code=1)
    assert "at least 12 characters" in refused.err


def test_its_help_says_all_that_visitors_may_change(cli):
    text = " ".join(cli("web", "--help").out.split())
    for may in ("retry and delete dead jobs", "revoke or terminate other jobs"):
        assert may in text


def test_a_port_in_use_is_one_error_before_any_address_is_said(cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = cli("web", "--port", str(taken.getsockname()[1]), code=1)
    assert refused.err.count("ddress already in use") == 1
    assert "http://" not in refused.err
