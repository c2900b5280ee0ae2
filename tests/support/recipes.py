"""The recipes in `examples/`: what they say, and their commands with the places of this machine."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import RawConfigParser
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml
from celery import Celery, _state

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMPOSE = EXAMPLES / "compose" / "compose.yaml"
KUBERNETES = EXAMPLES / "kubernetes"
KEDA = EXAMPLES / "kubernetes-keda"
SYSTEMD = EXAMPLES / "systemd"

#: Where the units find the programs of their environment.
PROGRAMS = "/srv/shop/.venv/bin/"


class Command(NamedTuple):
    """A command line that a recipe has: for the ids of tests, and its words."""

    name: str
    words: list[str]


@contextmanager
def nobodys_current_app() -> Iterator[None]:
    """What is imported meanwhile does not become the current app of this process's other tests, nor
    are its tasks theirs."""
    before, finalizers = _state._tls.current_app, {*_state._on_app_finalizers}
    try:
        yield
    finally:
        _state._tls.current_app = before
        _state._on_app_finalizers &= finalizers


def shop() -> Celery:
    """The app of the recipes."""
    with nobodys_current_app():
        from examples.shop import app

        app.finalize()
    return app


# -- compose


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def compose_commands() -> list[Command]:
    """Of the services, and of their health checks."""
    found = []
    for name, service in services().items():
        found += [Command(f"compose {name}", service["command"])]
        if "healthcheck" in service:
            found.append(Command(f"compose {name} healthcheck", service["healthcheck"]["test"][1:]))
    return found


# -- Kubernetes


def documents() -> dict[tuple[str, str], Any]:
    """All that would be applied, by kind and name."""
    paths = (*sorted(KUBERNETES.glob("*.yaml")), *sorted(KEDA.glob("*.yaml")))
    texts = [path.read_text() for path in paths]
    found = [one for text in texts for one in yaml.safe_load_all(text)]
    return {(one["kind"], one["metadata"]["name"]): one for one in found if "metadata" in one}


def deployments(image: str = "shop") -> dict[str, Any]:
    """The specs of what runs an image, by name."""
    specs = {name: one["spec"] for (kind, name), one in documents().items() if kind == "Deployment"}
    return {name: spec for name, spec in specs.items() if _container(spec)["image"] == image}


def container(deployment: str) -> dict[str, Any]:
    return _container(deployments()[deployment])


def _container(spec: dict[str, Any]) -> dict[str, Any]:
    [only] = spec["template"]["spec"]["containers"]
    return dict(only)


def kubernetes_commands() -> list[Command]:
    """Of the containers, and of their probes."""
    found = []
    for name in deployments():
        one = container(name)
        found.append(Command(f"kubernetes {name}", [*one["command"], *one["args"]]))
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if words := one.get(probe, {}).get("exec", {}).get("command"):
                found.append(Command(f"kubernetes {name} {probe}", unwrapped(words)))
    return found


def unwrapped(words: list[str]) -> list[str]:
    """The program's own words, of `sh -c "! PROGRAM ... | grep ..."` too."""
    if words[:2] != ["sh", "-c"]:
        return words
    return shlex.split(words[2].removeprefix("! ").partition(" | ")[0])


# -- systemd


def unit(name: str) -> RawConfigParser:
    found = RawConfigParser()
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string((SYSTEMD / name).read_text())
    return found


def units() -> list[str]:
    return sorted(path.name for path in SYSTEMD.iterdir() if path.suffix != ".env")


def exec_start(name: str, instance: str = "1") -> list[str]:
    """The words that systemd would execute, with the specifiers that the units have."""
    line = unit(name)["Service"]["ExecStart"].replace("%i", instance).replace("%%", "%")
    return shlex.split(line)


def systemd_commands() -> list[Command]:
    return [
        Command(f"systemd {name}", exec_start(name)) for name in units() if name.endswith("service")
    ]


def systemd_environment() -> dict[str, str]:
    lines = (SYSTEMD / "shop.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


# -- all of them


def commands() -> list[Command]:
    return [*compose_commands(), *kubernetes_commands(), *systemd_commands()]


def interpolated(text: str) -> str:
    """A text of compose as it is where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def environments() -> dict[str, dict[str, str]]:
    """What each recipe has in the environment of what it runs."""
    return {
        "compose": {
            name: interpolated(value) for name, value in services()["worker"]["environment"].items()
        },
        "kubernetes": {
            name: value
            for name, value in documents()["Secret", "shop"]["stringData"].items()
            if name.startswith("CELERY_")
        },
        "systemd": systemd_environment(),
    }


def seconds(text: str | int) -> int:
    """A span as compose and systemd have it here."""
    [(number, unit)] = re.findall(r"^(\d+)(s|m|min)?$", str(text))
    return int(number) * (60 if unit.startswith("m") else 1)


class Place:
    """A folder that stands for a container or a machine: the app is there, as in the image.

    Arguments:
        server: where the server that the recipes name is.
        port: a free one, for the exporter.
    """

    def __init__(self, folder: Path, server: str, port: int) -> None:
        self.folder, self.port = folder, port
        self._instead = {
            PROGRAMS: "",
            "/var/lib/shop-beat/": f"{folder}/",
            "/tmp/": f"{folder}/",
            "9811": str(port),
        }
        self._server = urlsplit(server).netloc
        folder.mkdir(exist_ok=True)
        shutil.copy(EXAMPLES / "shop.py", folder)

    def words(self, words: list[str]) -> list[str]:
        """A command line that can be run here; nothing but places is changed."""
        places = "|".join(map(re.escape, self._instead))  # at once: a folder here may be below /tmp
        words = [re.sub(places, lambda found: self._instead[found[0]], word) for word in words]
        program = Path(sys.executable).with_name(words[0])  # of this very environment
        return [str(program), *words[1:]]

    def env(self, environment: dict[str, str]) -> dict[str, str]:
        """An environment that names the server of this machine."""
        return {
            name: urlsplit(value)._replace(netloc=self._server).geturl()
            for name, value in environment.items()
        }


def tool(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A program that judges recipes, run to its end."""
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
