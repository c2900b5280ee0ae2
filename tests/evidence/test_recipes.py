"""The commands of the recipes in `examples/`, as they are there, against a real server."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support import recipes
from support.hosts import Host
from support.process import Process
from support.recipes import Place, container, documents, exec_start, services
from support.servers.server import Server, free_port
from support.waiting import eventually
from support.workers.worker import process_env

WELL, WARNING, CRITICAL = 0, 1, 2


class Recipe:
    """What a recipe starts, all in one folder, against one server."""

    def __init__(
        self, place: Place, environment: dict[str, str], keep: Callable[[Any], Any]
    ) -> None:
        self.place = place
        self.env = process_env(place.env(environment))
        self._keep = keep
        self._numbers = itertools.count()

    def start(self, words: list[str], ready: str, host: Host | None = None) -> Process:
        """A service, until it says that it is ready."""
        number = next(self._numbers)
        process: Process = self._keep(
            Process(
                self.place.words(words),
                log=self.place.folder / f"{number}.log",
                env=self.env,
                host=host,
                title=f"{number}: {' '.join(words)}",
            )
        )
        process.wait_log(ready, 60)
        return process

    def run(self, words: list[str], hostname: str = "") -> tuple[int, str]:
        """A command, to its end; its exit code and what it printed."""
        argv = self.place.words(words)
        if hostname:  # in the container of that name
            argv = Host(hostname).command(argv)
        done = subprocess.run(
            argv, env=self.env, cwd=self.place.folder, capture_output=True, text=True, timeout=90
        )
        return done.returncode, done.stdout.strip()

    def send(self, seconds: float, *options: str) -> str:
        """Publish a job; its id."""
        words = ["celery", "-A", "shop", "call", "shop.work", "-a", f"[{seconds}]", *options]
        code, told = self.run(words)
        assert code == 0
        return told

    def result(self, job: str) -> str:
        """Wait for a job; the worker that came to its end."""
        code, told = self.run(["celery", "-A", "shop", "result", job])
        assert code == 0
        return told

    def metrics(self) -> str:
        at = f"http://127.0.0.1:{self.place.port}/metrics"
        with urllib.request.urlopen(at, timeout=20) as answer:
            return str(answer.read().decode())

    def stop(self, *processes: Process) -> None:
        """As Docker, Kubernetes and systemd do: TERM to the first process, and time."""
        for process in processes:
            process.signal(signal.SIGTERM)
        for process in processes:
            assert process.wait_exit() == 0, process.title


@pytest.fixture
def server(fresh_server: Any) -> Server:
    """As the recipe for Compose configures it, with its password."""
    words = [*map(recipes.interpolated, services()["valkey"]["command"][1:])]
    options = {
        name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }
    return fresh_server(**options)


@pytest.fixture
def recipe(server: Server, tmp_path: Path, keep: Callable[[Any], Any]) -> Callable[[str], Recipe]:
    """`recipe("compose")`: with its environment."""

    def make(name: str) -> Recipe:
        place = Place(tmp_path / name, server.url(), free_port())
        return Recipe(place, recipes.environments()[name], keep)

    return make


@pytest.mark.netns
@pytest.mark.timeout(240)
def test_compose_a_killed_worker_is_found_and_its_job_is_finished(recipe):
    shop, found = recipe("compose"), services()
    worker = found["worker"]
    names = [f"worker-{number + 1}" for number in range(worker["deploy"]["replicas"])]
    whole = found["exporter"]["healthcheck"]["test"][1:]
    own = worker["healthcheck"]["test"][1:]

    code, line = shop.run(whole)
    assert (code, line) == (CRITICAL, "CRITICAL: no live worker is registered")
    workers = {name: shop.start(worker["command"], " ready.", Host(name)) for name in names}
    beat = shop.start(found["beat"]["command"], "beat: Starting")
    exporter = shop.start(found["exporter"]["command"], "/metrics")
    eventually(lambda: shop.run(whole)[0] == WELL, 60, message="all is well")
    for name in names:
        code, line = shop.run(own, name)
        assert code == WELL, line
        assert f"worker shop@{name} sent a heartbeat" in line

    job = shop.send(8)
    holder = re.compile(r"Task shop.work\[.*\] received")
    victim = eventually(lambda: [n for n, one in workers.items() if holder.search(one.log())])[0]
    workers[victim].freeze()
    eventually(lambda: shop.run(whole)[0] == WARNING, 60, message="its silence is a warning")
    assert f"worker shop@{victim} on {victim} is silent" in shop.run(whole)[1]
    workers.pop(victim).signal_all(signal.SIGKILL)

    assert shop.result(job) in {f"shop@{name}" for name in workers}
    eventually(lambda: shop.run(whole)[0] == WELL, 60, message="all is well again")
    assert f"no worker of host {victim}" in shop.run(own, victim)[1]
    counted = 'superfetch_jobs_recovered_total{queue="celery",task="shop.work"} 1.0'
    eventually(lambda: counted in shop.metrics().splitlines())

    shop.stop(beat)  # else what it sends in this moment waits, and is told of, too
    shop.stop(*workers.values())
    code, line = shop.run(whole)
    assert (code, line) == (CRITICAL, "CRITICAL: no live worker is registered")
    shop.stop(exporter)


def number(query: str, metrics: str) -> float:
    """What Prometheus makes of the recipe's query: sums by a label, their sum, and `clamp_max`."""
    samples = [one for family in text_string_to_metric_families(metrics) for one in family.samples]

    def total(found: re.Match[str]) -> str:
        name, label, differs, value = found.groups()
        rows = [one for one in samples if one.name == name]
        assert rows, f"{name} is not exported: its sum would be no number, and KEDA's an error"
        if label:
            rows = [one for one in rows if (one.labels[label] != value) == (differs == "!=")]
        return str(sum(one.value for one in rows))

    sums = re.sub(r'sum\((\w+)(?:\{(\w+)(!?=)"(\w+)"\})?\)', total, query)
    return float(eval(sums, {"__builtins__": {}, "clamp_max": min}))


def test_kubernetes_jobs_that_a_dead_worker_left_wake_a_fleet_at_zero(recipe, server):
    """What KEDA's two triggers say, from the first job until all is done."""
    shop = recipe("kubernetes")
    scaled = documents()["ScaledObject", "shop-worker"]["spec"]["triggers"]
    told: dict[str, Any] = {one["type"]: one["metadata"] for one in scaled}
    client = server.client(int(told["redis"]["databaseIndex"]))

    def words(name: str) -> list[str]:
        one = container(name)
        return [*one["command"], *one["args"]]

    def waiting() -> int:
        return int(client.llen(told["redis"]["listName"]))

    def unfinished() -> float:
        return number(told["prometheus"]["query"], shop.metrics())

    exporter = shop.start(words("shop-exporter"), "/metrics")
    assert (waiting(), unfinished()) == (0, 0)
    for _ in range(2):
        shop.send(0, "--countdown", "9999")
    job = shop.send(8)
    assert waiting() == 3, "the first trigger starts a worker"
    first = shop.start(words("shop-worker"), " ready.")
    eventually(
        lambda: unfinished() == 1,
        message="the second keeps it for the job that runs, and none for those that are parked",
    )
    assert waiting() == 0, "for the first there is nothing to do"

    first.signal_all(signal.SIGKILL)
    first.wait_gone()
    nobody = 'superfetch_owners{state="running"} 0.0'
    eventually(lambda: nobody in shop.metrics().splitlines(), message="nobody is left")
    assert waiting() == 0, "the control: the queue alone would leave the fleet at zero"
    assert unfinished() == 1, "what is in a dead worker's private list counts"
    beat = shop.start(words("shop-beat"), "beat: Starting")
    eventually(lambda: waiting() == 1, 30, message="beat's task wakes it, too")

    second = shop.start(words("shop-worker"), " ready.")
    assert shop.result(job).startswith("shop@")
    eventually(lambda: unfinished() == 0, message="jobs with an ETA keep no worker")
    shop.stop(second)
    for _ in range(2):
        shop.send(0, "--countdown", "30")
    third = shop.start(words("shop-worker"), " ready.")
    parked = f"superfetch:parked:{told['redis']['listName']}"
    eventually(lambda: client.zcard(parked) == 4, message="it has parked them")
    shop.stop(third)
    assert client.zcard(parked) == 4, "its end moves none"
    eventually(lambda: client.zcard(parked) == 2, 60, message="beat sees to what is due")
    assert waiting() >= 2, "and KEDA that it waits"
    shop.stop(beat)
    shop.stop(exporter)


def test_systemd_each_unit_starts_and_stops_as_it_says(recipe):
    shop = recipe("systemd")
    check = exec_start("shop-check.service")
    assert shop.run(check)[0] == CRITICAL
    worker = shop.start(exec_start("shop-worker@.service", "7"), " ready.")
    beat = shop.start(exec_start("shop-beat.service"), "beat: Starting")
    exporter = shop.start(exec_start("shop-exporter.service"), "/metrics")
    eventually(lambda: shop.run(check)[0] == WELL, 30)
    assert shop.result(shop.send(0)).startswith("shop7@")
    assert "superfetch_up 1.0" in shop.metrics().splitlines()
    shop.stop(beat, exporter, worker)
    assert [*shop.place.folder.glob("schedule*")], "beat keeps its times in its own folder"
    assert shop.run(check)[0] == CRITICAL
