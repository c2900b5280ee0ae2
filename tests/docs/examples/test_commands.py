"""Each command that a recipe starts is one that the command line takes, and finds its server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import click
import pytest
from celery.app.utils import find_app
from celery.bin.base import CLIContext
from celery.bin.celery import celery

from celery_superfetch.console import probe
from support import recipes
from support.recipes import EXAMPLES

OURS = [one for one in recipes.commands() if not one.words[0].startswith("valkey")]


@pytest.fixture(autouse=True)
def beside_the_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in the image: `-A shop` is found, and the environment names the server."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name, value in recipes.environments()["compose"].items():
        monkeypatch.setenv(name, value)
    with recipes.nobodys_current_app():
        yield


def taken(words: list[str]) -> str:
    """The command that was meant; raises what the command line would be refused with."""
    program, *rest = words
    name = os.path.basename(program)
    if name == "superfetch-check":
        probe._parser(None).parse_args(rest)
        return name
    assert name == "celery"
    context = celery.make_context(name, rest[:2], obj=CLIContext(recipes.shop(), True, None))
    assert find_app(context.params["app"]).main == "shop"
    command: click.Command | None = celery
    rest = rest[2:]
    while isinstance(command, click.Group):
        name, *rest = rest
        command = command.get_command(context, name)
    assert command is not None
    assert not command.make_context(name, rest, parent=context).args
    return name


@pytest.mark.parametrize("command", OURS, ids=lambda command: command.name)
def test_the_command_line_takes_it(command):
    meant = {"worker", "beat", "metrics", "superfetch-check"}
    assert taken(command.words) in meant


@pytest.mark.parametrize(
    "words",
    [
        ["celery", "-A", "shop", "worker", "--concurency", "2"],
        ["celery", "-A", "shop", "worker", "too-much"],
        ["celery", "-A", "shop", "superfetch", "metrics", "--prot", "9811"],
        ["celery", "-A", "shop", "superfetch", "metric"],
        ["superfetch-check", "--this-hosts"],
    ],
    ids=" ".join,
)
def test_the_control_is_refused(words):
    with pytest.raises((click.UsageError, SystemExit, AssertionError)):
        taken(words)


def test_every_recipe_starts_the_same():
    """One worker is like another, wherever it runs: no option was forgotten in one of them."""
    by_kind: dict[str, set[str]] = {}
    for command in OURS:
        kind = taken(command.words)
        if kind in ("worker", "beat"):
            options = {w for w in command.words if w.startswith("-") and not w.startswith("-s")}
            by_kind.setdefault(kind, set()).add(" ".join(sorted(options)))
    assert {kind: len(found) for kind, found in by_kind.items()} == {"worker": 1, "beat": 1}


@pytest.mark.parametrize("recipe", ["compose", "kubernetes", "systemd"])
def test_the_environment_is_what_celery_and_the_probe_read(recipe, monkeypatch):
    environment = recipes.environments()[recipe]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    app, broker = recipes.shop(), environment["CELERY_BROKER_URL"]
    assert probe._parser(None).parse_args([]).broker == broker
    assert app.conf.broker_url == broker
    assert app.conf.result_backend == environment["CELERY_RESULT_BACKEND"]
    # Many services that are rented have database 0 alone.
    assert {urlsplit(url).path for url in (broker, app.conf.result_backend)} == {"/0"}
