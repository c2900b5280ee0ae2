"""The recipe for Compose: valid, and it stops, persists and watches as the docs promise."""

from __future__ import annotations

import re
import shutil
import sys
from urllib.parse import urlsplit

import pytest

from support.recipes import COMPOSE, EXAMPLES, interpolated, seconds, services, shop, tool

ROOT = EXAMPLES.parent


def test_it_is_valid_by_the_schema_of_compose():
    pytest.importorskip("check_jsonschema", reason="check-jsonschema (extra `lint`) is missing")
    program = (sys.executable, "-m", "check_jsonschema")  # which need not be on the PATH
    done = tool(*program, "--builtin-schema", "vendor.compose-spec", str(COMPOSE))
    assert done.returncode == 0, done.stdout + done.stderr


def test_docker_compose_reads_it():
    docker = shutil.which("docker")
    if docker is None or tool(docker, "compose", "version").returncode:
        pytest.skip("docker compose is not installed")
    done = tool(docker, "compose", "-f", str(COMPOSE), "config", "--quiet")
    assert done.returncode == 0, done.stderr


def test_a_worker_has_the_time_that_it_needs_to_stop():
    worker = services()["worker"]
    assert worker["stop_signal"] == "SIGTERM"
    assert seconds(worker["stop_grace_period"]) > shop().conf.task_time_limit + 10


def test_three_workers_one_beat_and_one_exporter():
    found = {name: one.get("deploy", {}).get("replicas", 1) for name, one in services().items()}
    assert found == {"valkey": 1, "worker": 3, "beat": 1, "exporter": 1}
    assert all(one["restart"] == "unless-stopped" for one in services().values())


def test_the_server_keeps_its_data():
    valkey = services()["valkey"]
    words = valkey["command"]
    assert words[words.index("--appendonly") + 1] == "yes"
    assert words[words.index("--maxmemory-policy") + 1] == "noeviction"
    assert valkey["volumes"] == ["valkey:/data"]


def test_what_is_named_is_there():
    found = services()
    for name, service in found.items():
        assert set(service.get("depends_on", {})) <= set(found), name
        for url in service.get("environment", {}).values():
            if name != "valkey":
                assert urlsplit(interpolated(url)).hostname in found, url
    waited_for = {name for one in found.values() for name in one.get("depends_on", {})}
    assert all("healthcheck" in found[name] for name in waited_for)
    port = found["exporter"]["command"][-1]
    assert found["exporter"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_the_image_is_made_of_files_that_are_there_and_sent():
    build = services()["worker"]["build"]
    assert (COMPOSE.parent / build["context"]).resolve() == ROOT
    recipe = (ROOT / build["dockerfile"]).read_text()
    named = [name for name in re.findall(r"^COPY (\S+)", recipe, re.M) if name != "."]
    assert named
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    for name in named:
        assert (ROOT / name).is_file()
        assert f"!{name}" in sent, f"{name} is left out of the context"
    # A shell as the first process would keep TERM to itself.
    assert not re.findall(r"^(ENTRYPOINT|CMD|STOPSIGNAL)", recipe, re.M)


def test_a_probe_gives_up_before_docker_does():
    for name, service in services().items():
        check = service.get("healthcheck", {})
        if "--timeout" in check.get("test", []):
            own = float(check["test"][check["test"].index("--timeout") + 1])
            assert own < seconds(check["timeout"]), name
