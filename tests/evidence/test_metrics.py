"""Metrics as Prometheus scrapes them, of real deaths; and that alerts, dashboard and docs fit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.process import Process
from support.servers.server import free_port
from support.waiting import eventually
from support.workers.bench import payload
from support.workers.cli import superfetch_command
from support.workers.worker import process_env

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "examples" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "examples" / "grafana" / "superfetch.json"
METRICS_PAGE = ROOT / "docs" / "operate" / "metrics.md"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(at: str) -> str:
    with urllib.request.urlopen(at, timeout=20) as answer:
        return str(answer.read().decode())


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((f"superfetch_{name}", frozenset(labels.items())))


@pytest.fixture
def exporter(
    env: Callable[..., dict[str, str]], keep: Callable[[Any], Any], tmp_path: Path
) -> Callable[..., tuple[Process, str]]:
    """`exporter(url=...)`: a real one, and where it is."""

    def start(**settings: Any) -> tuple[Process, str]:
        process = keep(
            Process(
                superfetch_command("metrics", "--port", "0"),
                log=tmp_path / "metrics.log",
                env=process_env(env(**settings)),
            )
        )
        process.wait_log("/metrics")
        [at] = re.findall(r"http://\S+/metrics", process.log())
        return process, at

    return start


def promtool(*args: str, text: str = "") -> None:
    """Run it, where it can be had (Debian's package `prometheus`)."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run([tool, *args], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_kill_is_counted_and_all_that_alerts_and_dashboard_name_is_exported(
    worker, shop, ledger, db, exporter
):
    options = {"reap_interval": 1}
    victim = worker(concurrency=2, options=options)
    shop.run("h")
    process, at = exporter()
    before = samples(scrape(at))
    assert value(before, "in_flight", state="running") == 1
    assert value(before, "jobs_recovered_total", queue="", task="") == 0

    victim.die()
    two = worker(concurrency=2, options=options)
    eventually(lambda: ledger.runs()["h"] == 2, message="it runs again")
    worker(concurrency=1, options=options)

    recovered = {"queue": "celery", "task": "shop.hold"}

    def told() -> Samples | None:
        found = samples(scrape(at))  # the exporter may answer with what it read a moment ago
        return found if value(found, "jobs_recovered_total", **recovered) else None

    found = eventually(told, message="the recovery")
    assert value(found, "pass_seconds_count")
    assert value(found, "up") == 1
    assert value(found, "jobs_recovered_total", **recovered) == 1
    assert value(found, "recovery_seconds_count") == 1
    assert 0 < (value(found, "recovery_seconds_sum") or 0) < 60
    assert value(found, "owners", state="running") == 2
    assert value(found, "queue_consumers", queue="celery") == 2
    assert value(found, "owners_reaped_total") == 1

    ledger.release()
    eventually(lambda: "h" in ledger.finishes())
    run = {"queue": "celery", "task": "shop.hold", "state": "succeeded"}
    eventually(lambda: value(samples(scrape(at)), "runs_total", **run) == 1, message="counted")
    found = samples(scrape(at))
    assert value(found, "run_seconds_count", task="shop.hold") == 1
    assert 0 < (value(found, "run_seconds_sum", task="shop.hold") or 0) < 60
    text = scrape(at)
    documented = re.findall(
        r"^\| `(superfetch_[a-z_]+)` \|", METRICS_PAGE.read_text(), re.MULTILINE
    )
    families = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(text)
    }
    assert sorted(documented) == sorted(families)
    # A family may have no sample here: no job is scheduled, and there is no beat.
    exported = {name for name, _ in samples(text)} | families
    for page in (ALERTS, DASHBOARD):
        named = set(re.findall(r"\bsuperfetch_[a-z_]+", page.read_text()))
        assert len(named) > 10
        assert named <= exported, page.name

    two.stop()
    process.signal(15)
    assert process.wait_exit() == 0
    promtool("check", "metrics", text=text)


def test_scheduled_jobs_and_workers_have_figures_that_the_alert_can_use(bench, cli):
    worker = bench.owner(node="celery@web-1", lists=["mail", "late"], memory=64 * 2**20)
    bench.owner(node="celery@web-2", lists=["mail"])
    now = bench.database.server_time()
    bench.client.hset(bench.keys.owner_record(worker.owner), "registered_at", now - 90_000)
    for queue, due in (("mail", now + 3600_000), ("late", now - 100_000)):
        [job] = bench.give(worker, queue, [payload(f"on {queue}", queue)])
        bench.run(bench.parked.park({job: due}))
    found = samples(cli("metrics", "--once").out)
    assert value(found, "worker_memory_bytes", worker="celery@web-1") == 64 * 2**20
    assert value(found, "worker_memory_bytes", worker="celery@web-2") is None, "not recorded"
    assert 90 <= (value(found, "worker_uptime_seconds", worker="celery@web-1") or 0) < 3600
    due_in = {
        name: value(found, "parked_next_due_seconds", queue=name) for name in ("mail", "late")
    }
    assert 3000 < (due_in["mail"] or 0) <= 3600
    assert -3600 < (due_in["late"] or 0) <= -100
    assert value(found, "parked_next_due_seconds", queue="celery") is None
    rows = {row["queue"]: row for row in cli("status", "--json").json()["queues"]}
    assert rows["late"]["overdue"] >= 100


def test_a_scrape_of_a_silent_server_ends_and_says_so(fresh_server, exporter):
    server = fresh_server()
    process, at = exporter(url=server.url())
    assert value(samples(scrape(at)), "up") == 1
    server.pause()
    down = {("superfetch_up", frozenset()): 0}  # each scrape has its end, by its own timeout
    eventually(lambda: samples(scrape(at)) == down, message="what was read is told for 2 s more")
    process.wait_log("Metrics are not available: the broker has not answered for 5 s.")
    server.resume()
    eventually(lambda: value(samples(scrape(at)), "up") == 1, 40)


def test_once_prints_them_and_fails_where_there_are_none(cli):
    assert value(samples(cli("metrics", "--once").out), "up") == 1
    gone = cli("metrics", "--once", url=f"redis://127.0.0.1:{free_port()}/0", code=1)
    assert value(samples(gone.out), "up") == 0
    assert "Metrics are not available: the broker cannot be reached: Error 111" in gone.err, (
        "else nobody knows why"
    )


def test_without_the_extra_it_says_what_to_install(cli):
    with mock.patch.dict(sys.modules, {"prometheus_client": None}):
        sys.modules.pop("celery_superfetch.console.metrics", None)
        error = cli("metrics", "--once", code=1).err
    assert "pip install 'celery-superfetch[console]'" in error
    assert "Traceback" not in error


def test_each_alert_is_valid_and_says_what_to_do():
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text())
    documented = re.findall(r"^\| `(Superfetch\w+)` \|", METRICS_PAGE.read_text(), re.MULTILINE)
    assert alerts == documented
    promtool("check", "rules", str(ALERTS))


def test_the_dashboard_is_one_that_grafana_reads():
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    for panel in panels:
        assert {"type", "title", "gridPos", "targets", "datasource"} <= set(panel)
        where = panel["gridPos"]
        assert where["x"] + where["w"] <= 24
        for target in panel["targets"]:
            assert "superfetch_" in target["expr"]
            assert target["expr"].count("(") == target["expr"].count(")")
