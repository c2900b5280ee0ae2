"""The recipe for Kubernetes of docs/run/deploying.md: valid, and what its parts say of each
other is true."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from celery_superfetch.app.broker import config_of
from celery_superfetch.app.queues import lists_of
from celery_superfetch.store.keys import Keys
from support.recipes import (
    COMPOSE,
    KEDA,
    KUBERNETES,
    container,
    deployments,
    documents,
    environments,
    shop,
    tool,
    unwrapped,
)

CONFIG = config_of(shop())
POD: dict[str, Any] = deployments()["shop-worker"]["template"]["spec"]
SCALED: dict[str, Any] = documents()["ScaledObject", "shop-worker"]["spec"]


def trigger(kind: str) -> dict[str, str]:
    [found] = [one["metadata"] for one in SCALED["triggers"] if one["type"] == kind]
    return dict(found)


#: KEDA's own kinds are in no schema of Kubernetes; most tests below are about them.
OF_KEDA = ("ScaledObject", "TriggerAuthentication")
BUILT_IN = [one for one in documents() if one[0] not in OF_KEDA]


@pytest.mark.parametrize("which", BUILT_IN, ids="-".join)
def test_it_is_valid_by_the_schema_of_kubernetes(which):
    lint = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate (extra `lint`) is missing"
    )
    document = json.loads(json.dumps(documents()[which]))
    lint.validate(document, lint.latest_version(), strict=True)
    document.update({"spec" if "spec" in document else "data": {"selektor": {"a": "b"}, "n": 1}})
    if which[0] == "Namespace":
        document["spec"] = {"selektor": []}
    with pytest.raises(lint.ValidationError):  # the control
        lint.validate(document, lint.latest_version(), strict=True)


def kustomized(folder: Path) -> dict[tuple[str, str], Any]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = tool(kubectl, "kustomize", str(folder))
    assert done.returncode == 0, done.stderr
    built = [*yaml.safe_load_all(done.stdout)]
    return {(one["kind"], one["metadata"]["name"]): one for one in built}


def test_kustomize_puts_them_together():
    whole, scaled = kustomized(KUBERNETES), kustomized(KEDA)
    keda = {(kind, name) for kind, name in documents() if kind in OF_KEDA}
    assert len(keda) == len(OF_KEDA)
    way = {("NetworkPolicy", "valkey-from-keda")}
    assert set(whole) | keda | way == set(scaled) == set(documents())
    images = {
        spec["template"]["spec"]["containers"][0]["image"]
        for (kind, _), spec in ((which, one.get("spec")) for which, one in whole.items())
        if kind == "Deployment"
    }
    assert images == {"shop:1", "valkey/valkey:8-alpine"}
    worker = "Deployment", "shop-worker"
    assert "replicas" in whole[worker]["spec"]
    assert "replicas" not in scaled[worker]["spec"], "each apply would set KEDA's number back"


@pytest.mark.parametrize("folder", [KUBERNETES, KEDA], ids=lambda path: path.name)
def test_no_file_is_left_out(folder):
    whole = yaml.safe_load((folder / "kustomization.yaml").read_text())
    there = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in whole["resources"] if name != "../kubernetes"} == there
    if folder == KUBERNETES:
        assert [image["name"] for image in whole["images"]] == ["shop"]


def test_nothing_runs_as_root_and_the_image_has_the_user():
    dockerfile = (COMPOSE.parent / "Dockerfile").read_text()
    for name, spec in deployments().items():
        security = spec["template"]["spec"]["securityContext"]
        assert security["runAsNonRoot"], name
        user = security["runAsUser"]
        assert f"useradd --uid {user} " in dockerfile
        assert f"USER {user}\n" in dockerfile


def test_the_server_for_trying_is_the_one_that_all_are_told_of():
    [valkey] = deployments("valkey/valkey:8-alpine").values()
    service = documents()["Service", "valkey"]["spec"]
    assert service["selector"].items() <= valkey["template"]["metadata"]["labels"].items()
    broker = urlsplit(environments()["kubernetes"]["CELERY_BROKER_URL"])
    assert (broker.hostname, broker.port) == ("valkey", service["ports"][0]["port"])


def test_each_container_has_the_environment():
    for name in deployments():
        [source] = container(name)["envFrom"]
        assert ("Secret", source["secretRef"]["name"]) in documents(), name


def test_a_worker_has_the_time_that_it_needs_to_stop():
    leaving = 2 * CONFIG.heartbeat_interval  # its last acks, its farewell
    assert POD["terminationGracePeriodSeconds"] > shop().conf.task_time_limit + leaving
    assert "lifecycle" not in container("shop-worker"), "a hook would take its time off that"


def test_a_worker_is_not_restarted_for_what_others_would_forgive():
    live, start = (container("shop-worker")[name] for name in ("livenessProbe", "startupProbe"))
    # Silence counts as death after owner_ttl: a probe is no quicker.
    assert live["periodSeconds"] * live["failureThreshold"] > CONFIG.owner_ttl
    assert start["periodSeconds"] * start["failureThreshold"] > CONFIG.owner_ttl
    for probe in (live, start):
        words = unwrapped(probe["exec"]["command"])
        assert float(words[words.index("--timeout") + 1]) < probe["timeoutSeconds"]
        assert "--this-host" in words
    assert "readinessProbe" not in container("shop-worker")
    # A hung worker does not react to TERM, so the pod's long grace period would be wasted on it.
    assert 2 < live["terminationGracePeriodSeconds"] < POD["terminationGracePeriodSeconds"]


def test_a_rollout_starts_new_workers_before_it_stops_old_ones():
    assert deployments()["shop-worker"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 1,
        "maxUnavailable": 0,
    }


def test_beat_is_one_and_never_two():
    beat = deployments()["shop-beat"]
    assert beat["replicas"] == 1
    assert beat["strategy"] == {"type": "Recreate"}


def test_the_exporter_is_asked_where_it_listens():
    exporter = container("shop-exporter")
    port = exporter["args"][exporter["args"].index("--port") + 1]
    [opened] = exporter["ports"]
    assert str(opened["containerPort"]) == port
    assert exporter["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": opened["name"]}
    told = deployments()["shop-exporter"]["template"]["metadata"]["annotations"]
    assert told["prometheus.io/port"] == port
    assert deployments()["shop-exporter"]["replicas"] == 1


def test_what_selects_selects():
    for name, spec in deployments().items():
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items(), name
    budget = documents()["PodDisruptionBudget", "shop-worker"]["spec"]
    labels = deployments()["shop-worker"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    # Beside one worker that may go there need not be another: a node can be drained at night.
    assert budget["maxUnavailable"] == 1


def test_keda_looks_at_all_lists_of_the_app_and_at_its_server():
    keys = Keys(CONFIG.global_keyprefix)
    redis = trigger("redis")
    assert {redis["listName"]} == {keys.queue(name) for name in lists_of(shop())}
    broker = urlsplit(environments()["kubernetes"]["CELERY_BROKER_URL"])
    assert redis["address"] == f"{broker.hostname}:{broker.port}"
    assert redis["databaseIndex"] == broker.path.strip("/")


def test_keda_is_told_in_words_as_its_schema_wants_it():
    for one in SCALED["triggers"]:
        assert all(isinstance(value, str) for value in one["metadata"].values()), one["type"]


def test_keda_scales_the_workers_to_zero_and_nobody_else_does():
    assert SCALED["scaleTargetRef"]["name"] in deployments()
    assert SCALED["minReplicaCount"] == 0
    keda = yaml.safe_load((KEDA / "kustomization.yaml").read_text())
    [patch] = keda["patches"]
    assert patch["target"] == {"kind": "Deployment", "name": "shop-worker"}
    assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]
    assert "replicas" in deployments()["shop-worker"]
    # One that guessed while Prometheus is away would stop workers, or start as many as it says.
    assert "fallback" not in SCALED


def test_jobs_in_no_queue_count_as_well():
    """tests/evidence/test_recipes.py works the query out on metrics of real deaths."""
    prometheus = trigger("prometheus")
    named = set(re.findall(r"superfetch_\w+", prometheus["query"]))
    assert named == {"superfetch_in_flight", "superfetch_probation"}
    assert prometheus["ignoreNullValues"] == "false"
    assert "activationThreshold" not in prometheus, "a single job wakes a worker"
    words = container("shop-worker")["args"]
    assert prometheus["threshold"] == words[words.index("-c") + 1]
    # A worker holds no more than it runs, so that the threshold is one full worker.
    assert shop().conf.worker_prefetch_multiplier == 1
    # As long as a job is in neither number: a minute between two scrapes, and KEDA's own pause.
    assert SCALED["cooldownPeriod"] > 60 + 2 * SCALED["pollingInterval"]
