"""The wall: what a worker's install does not bring, neither a worker nor an operator needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from support.house import HERE
from support.waiting import eventually
from support.workers.bench import payload
from support.workers.worker import process_env

PYTHON = [sys.executable, "-c"]


def extras() -> list[str]:
    """What the extras for users bring, by the names by which it is imported."""
    config = ConfigParser()
    config.read(HERE / "setup.cfg")
    named = config["options.extras_require"]
    lines = "\n".join(named[extra] for extra in ("console", "web", "demo")).split()
    return [Requirement(line).name.replace("-", "_") for line in lines if line[0].isalpha()]


@pytest.fixture
def bare(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a process in which no extra can be imported."""
    shadows = tmp_path / "shadows"
    shadows.mkdir()
    for name in extras():
        (shadows / f"{name}.py").write_text(f'raise ImportError("no {name} in this process")\n')
    return {"PYTHONPATH": os.pathsep.join([str(shadows), process_env({})["PYTHONPATH"]])}


def test_the_control_finds_no_extra(bare):
    assert {"prometheus_client", "starlette", "jinja2", "uvicorn", "rich"} <= {*extras()}
    for name in extras():
        done = subprocess.run(
            [*PYTHON, f"import {name}"], env=process_env(bare), capture_output=True, text=True
        )
        assert f"no {name} in this process" in done.stderr


def test_a_worker_and_operators_need_no_extra(bare, worker, cli, shop, ledger, client):
    def run(*words: str, **how: Any) -> Any:
        return cli(*words, process=True, environ=bare, **how)

    options = {"strike_limit": 1}
    one = worker(concurrency=1, options=options, env=bare)
    said = run("status").out
    assert said.startswith("Warning: the server keeps jobs in memory only"), "it has its judge"
    assert f"{one.name}@" in said
    shop.kill_child.delay("k")
    eventually(lambda: run("dead", "list", "--json").json()["size"] == 1)
    assert "shop.kill_child" in run("dead", "list").out
    shop.run("h")
    assert "shop.hold" in run("jobs").out
    one.die()
    assert run("reap", "--json").json()["recovered"] == 1
    assert run("check", code=2).out.startswith("CRITICAL: ")
    assert "[no-worker]" in run("doctor", code=1).out

    client.hset("unacked", "tag", json.dumps([json.loads(payload("u")), "", "celery"]))
    client.zadd("unacked_index", {"tag": 1})
    assert run("migrate", "--json").json()["requeued"] == 1
    assert run("rollback", "--json").json()["in_flight"] == 0
    assert client.llen("celery") == 2


@pytest.mark.parametrize(("command", "extra"), [("metrics", "console"), ("web", "web")])
def test_a_command_without_its_extra_says_in_one_line_what_to_install(command, extra, bare, cli):
    failed = cli(command, process=True, environ=bare, code=1)
    assert failed.out == ""
    [line] = failed.err.splitlines()
    assert f"pip install 'celery-superfetch[{extra}]'" in line
