"""What a supplier can do to this project, and what a job that was taken over can do from within the
recipes: workflows run what was reviewed, and the examples grant what is needed and no more."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from support.recipes import (
    EXAMPLES,
    KEDA,
    KUBERNETES,
    SYSTEMD,
    documents,
    environments,
    interpolated,
    services,
    tool,
    units,
)

GITHUB = EXAMPLES.parent / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
#: An action by its commit, with the version for people and for dependabot.
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")


def workflow(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def jobs() -> dict[str, Any]:
    return {name: job for path in WORKFLOWS for name, job in workflow(path)["jobs"].items()}


def actions() -> list[str]:
    """Each `uses:` as its line has it, with what stands behind it."""
    texts = "\n".join(path.read_text() for path in WORKFLOWS)
    return re.findall(r"uses: *(.+)", texts)


def test_each_action_is_one_commit_with_its_version():
    assert len(actions()) >= 8
    assert [one for one in actions() if not PINNED.fullmatch(one)] == []
    versions = {one.partition("@")[0]: one for one in actions()}
    assert set(actions()) == set(versions.values()), "the same one everywhere"
    for moving in ("actions/checkout@v4", "actions/checkout@main  # v4.0.0", "a/b@" + "0" * 39):
        assert not PINNED.fullmatch(moving), "the control"


def test_no_step_finds_the_credentials_of_the_checkout():
    steps = [step for job in jobs().values() for step in job["steps"]]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) >= len(WORKFLOWS)
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_a_job_has_no_rights_but_the_one_that_publishes():
    for path in WORKFLOWS:
        assert workflow(path)["permissions"] == {"contents": "read"}, path.name
        text = path.read_text()
        assert "pull_request_target" not in text
        assert "secrets." not in text, "there is no token that could be taken"
        # What a stranger writes (a branch, a title) is nowhere a part of a command.
        assert not re.findall(r"\$\{\{ *github\.(event\.|head_ref|ref_name)", text)
    own = {name: job["permissions"] for name, job in jobs().items() if "permissions" in job}
    assert own == {"publish": {"id-token": "write"}}


def test_a_release_is_published_by_the_workflow_itself_with_attestations():
    job = jobs()["publish"]
    assert job["environment"] == "pypi", "people approve it there"
    assert job["if"] == "github.event_name == 'push' && startsWith(github.ref, 'refs/tags/v')"
    assert job["needs"] == "build"
    used = {step["uses"].partition("@")[0]: step for step in job["steps"] if "uses" in step}
    assert "actions/checkout" not in used, "it uploads what was built, and runs nothing of it"
    upload = used["pypa/gh-action-pypi-publish"]["with"]
    assert upload == {"attestations": True}, "and neither a user nor a password"
    assert "twine upload" not in (EXAMPLES.parent / "RELEASING.md").read_text()


def test_updates_are_asked_for_wherever_something_is_named():
    updates = yaml.safe_load((GITHUB / "dependabot.yml").read_text())["updates"]
    found = {(one["package-ecosystem"], one["directory"]) for one in updates}
    assert {("github-actions", "/"), ("pip", "/"), ("docker", "/examples/compose")} <= found
    for one in updates:
        assert (EXAMPLES.parent / one["directory"].lstrip("/")).is_dir()
        assert one["cooldown"]["default-days"] >= 7, "a release that was taken over is found first"


# -- Kubernetes


def pods() -> dict[str, dict[str, Any]]:
    found = documents()
    return {
        name: one["spec"]["template"]["spec"]
        for (kind, name), one in found.items()
        if kind == "Deployment"
    }


def excess_of(pod: dict[str, Any]) -> list[str]:
    """What a pod may do beyond what these recipes need."""
    own, containers = pod.get("securityContext", {}), [*pod["containers"]]
    found = []
    if pod.get("automountServiceAccountToken") is not False:
        found.append("a token of the API")
    if not own.get("runAsNonRoot") or not own.get("runAsUser"):
        found.append("root")
    if own.get("seccompProfile") != {"type": "RuntimeDefault"}:
        found.append("any system call")
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        found += [name] * bool(pod.get(name))
    for container in containers:
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False:
            found.append("more rights than its parent")
        if context.get("readOnlyRootFilesystem") is not True:
            found.append("the image's files")
        if context.get("capabilities") != {"drop": ["ALL"]}:
            found.append("capabilities")
        if "memory" not in container.get("resources", {}).get("limits", {}):
            found.append("all memory")
    return found


@pytest.mark.parametrize("name", sorted(pods()))
def test_a_pod_may_do_no_more_than_it_needs(name):
    assert excess_of(pods()[name]) == []


def without_one(spec: dict[str, Any], keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        changed = copy.deepcopy(spec)
        for place in (changed, changed.get("securityContext", {}), *changed["containers"]):
            place.pop(key, None)
        for container in changed["containers"]:
            container.get("securityContext", {}).pop(key, None)
        yield key, changed


def test_the_control_each_line_of_it_counts():
    keys = ("automountServiceAccountToken", "runAsNonRoot", "runAsUser", "seccompProfile")
    keys += ("allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities", "resources")
    for key, changed in without_one(pods()["shop-worker"], keys):
        assert len(excess_of(changed)) == 1, key


def test_the_namespace_refuses_a_pod_that_may_do_more():
    labels = documents()["Namespace", "shop"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_what_a_pod_writes_to_is_a_volume_of_its_own():
    for name, pod in pods().items():
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        for container in pod["containers"]:
            for mount in container.get("volumeMounts", ()):
                volume = volumes[mount["name"]]
                assert mount.get("readOnly") or "emptyDir" in volume, (name, mount)
    beat = pods()["shop-beat"]["containers"][0]
    schedule = beat["args"][beat["args"].index("-s") + 1]
    assert schedule.startswith(beat["volumeMounts"][0]["mountPath"])


def policies() -> dict[str, Any]:
    return {
        name: one["spec"] for (kind, name), one in documents().items() if kind == "NetworkPolicy"
    }


def test_nobody_reaches_a_pod_but_those_that_are_named():
    found = policies()
    closed = found["nothing-by-default"]
    assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    opened = {
        name: [rule for way in ("ingress", "egress") for rule in one.get(way, ())]
        for name, one in found.items()
        if one is not closed
    }
    for name, rules in opened.items():
        for rule in rules:
            assert rule.get("ports"), f"{name}: every port"
            ends = rule.get("from", rule.get("to"))
            assert ends, f"{name}: everybody"
            assert all(end and {} not in end.values() for end in ends), f"{name}: everybody"
    # All that run the shop reach the server, and it is reached by no others.
    app = {"key": "app", "operator": "In", "values": ["shop-worker", "shop-beat", "shop-exporter"]}
    [inward], [outward] = found["valkey"]["ingress"], found["shop"]["egress"]
    assert inward["from"] == [{"podSelector": {"matchExpressions": [app]}}]
    assert found["shop"]["podSelector"] == {"matchExpressions": [app]}
    assert set(app["values"]) == pods().keys() - {"valkey"}
    assert inward["ports"] == outward["ports"] == [{"port": 6379}]


def test_a_password_is_in_a_secret_and_nowhere_else():
    secrets = {name: one for (kind, name), one in documents().items() if kind == "Secret"}
    shop = secrets["shop"]["stringData"]
    password = shop["BROKER_PASSWORD"]
    assert secrets["valkey"]["stringData"]["valkey.conf"].split() == ["requirepass", password]
    for url in environments()["kubernetes"].values():
        assert urlsplit(url).password == password
    for folder in (KUBERNETES, KEDA):
        for path in folder.glob("*.yaml"):
            if path.name != "secrets.yaml":
                assert password not in path.read_text(), path.name
                assert not re.search(r"://[^\s/]*:[^\s/]*@", path.read_text()), path.name


# -- Compose and systemd


def test_a_service_of_compose_may_do_no_more_than_it_needs():
    for name, service in services().items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "network_mode", "pid", "ipc", "cap_add"} & service.keys(), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name}: the network reaches it"
    dockerfile = (EXAMPLES / "compose" / "Dockerfile").read_text()
    assert re.findall(r"^USER (\d+)$", dockerfile, re.M) == ["1000"]
    assert services()["valkey"]["user"] == "999"


def test_the_server_of_compose_wants_a_password_that_a_variable_sets():
    words = services()["valkey"]["command"]
    password = words[words.index("--requirepass") + 1]
    assert re.fullmatch(r"\$\{SHOP_PASSWORD:-[\w-]+\}", password)
    for name, service in services().items():
        for key, value in service.get("environment", {}).items():
            assert password in value, (name, key)
    for url in environments()["compose"].values():
        assert urlsplit(url).password == interpolated(password)


MOST_EXPOSED = 4.0  # of 10, which is a unit that systemd protects from nothing


@pytest.mark.parametrize("name", [name for name in units() if name.endswith("service")])
def test_a_unit_of_systemd_is_exposed_by_4_of_10_at_most(tmp_path, name):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")

    def exposure(text: str) -> float:
        (tmp_path / name).write_text(text)
        done = tool("systemd-analyze", "security", "--offline=yes", f"./{name}", cwd=tmp_path)
        [level] = re.findall(r"exposure level for .*?: ([\d.]+)", done.stdout)
        return float(level)

    whole = (SYSTEMD / name).read_text()
    assert exposure(whole) <= MOST_EXPOSED
    bare = whole.partition("NoNewPrivileges")[0] + "\n"
    assert exposure(bare) > MOST_EXPOSED, "the control"
