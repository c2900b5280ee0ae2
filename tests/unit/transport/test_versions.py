"""Which versions a consumer goes on with, and what it says of others."""

from __future__ import annotations

import logging
import sys
from importlib import metadata

import pytest

from celery_superfetch.errors import UnsupportedVersion
from celery_superfetch.transport import versions

check_versions = versions.check_versions.__wrapped__  # it is asked once in a process


@pytest.fixture(autouse=True)
def _a_worker(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With all four in it, of the newest versions that were tested."""
    for project, (_, newest, _) in versions.TESTED.items():
        monkeypatch.setattr(__import__(project), "__version__", newest)
    monkeypatch.delenv(versions.OVERRIDE, raising=False)
    caplog.set_level(logging.INFO)


def use(monkeypatch: pytest.MonkeyPatch, project: str, version: str) -> None:
    monkeypatch.setattr(sys.modules[project], "__version__", version)


@pytest.mark.parametrize("project", versions.TESTED)
def test_what_is_installed_here_is_not_refused(project):
    """A newer one within the bounds is a warning, and no reason to fail on the day it is out."""
    oldest, _, end = map(versions._numbers, versions.TESTED[project])
    assert oldest <= versions._numbers(metadata.version(project)) < end


@pytest.mark.parametrize(
    ("project", "version"),
    [("celery", "5.5.0"), ("celery", "5.6.3"), ("kombu", "5.7.0"), ("redis", "6.4.0")],
)
def test_what_was_tested_is_used_without_a_word(project, version, monkeypatch, caplog):
    use(monkeypatch, project, version)
    check_versions()
    assert not caplog.records


@pytest.mark.parametrize(
    ("kombu", "redis", "works"),
    [
        ("5.5.4", "5.2.1", True),
        ("5.6.2", "5.2.1", True),
        ("5.6.2", "8.1.0", True),
        ("5.7.0", "6.1.0", True),
        ("5.7.0", "6.0.0", False),
        ("5.7.0", "5.2.1", False),
    ],
)
@pytest.mark.parametrize("anyway", [False, True])
def test_kombu_and_redis_py_have_to_work_together(kombu, redis, works, anyway, monkeypatch):
    """Nobody can take that risk: kombu itself refuses the pair."""
    use(monkeypatch, "kombu", kombu)
    use(monkeypatch, "redis", redis)
    if anyway:
        monkeypatch.setenv(versions.OVERRIDE, "1")
    if works:
        return check_versions()
    with pytest.raises(UnsupportedVersion) as raised:
        check_versions()
    assert f"kombu {kombu} does not work with redis-py {redis}" in str(raised.value)
    assert "pip install 'redis>=6.1,<9'" in str(raised.value)
    assert "pip install 'kombu<5.7' 'celery<5.7'" in str(raised.value)


@pytest.mark.parametrize(
    ("project", "version"),
    [("celery", "5.7.9"), ("kombu", "5.7.1rc1"), ("billiard", "4.3.9"), ("redis", "8.2.0")],
)
def test_a_later_release_of_the_same_version_is_used_with_a_warning(
    project, version, monkeypatch, caplog
):
    use(monkeypatch, project, version)
    check_versions()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    newest = versions.TESTED[project][1]
    assert f"to {newest}, not with {version}" in record.getMessage()
    assert f"pip install '{project}=={newest}'" in record.getMessage()


@pytest.mark.parametrize(
    ("project", "version", "pin"),
    [
        ("celery", "5.8.0", "pip install 'celery>=5.5,<5.8'"),
        ("celery", "5.4.0", "pip install 'celery>=5.5,<5.8'"),
        ("celery", "6.0.0", "pip install 'celery>=5.5,<5.8'"),
        ("kombu", "5.8.0b1", "pip install 'kombu>=5.5,<5.8'"),
        ("billiard", "4.4.0", "pip install 'billiard>=4.2.1,<4.4'"),
        ("billiard", "4.2.0", "pip install 'billiard>=4.2.1,<4.4'"),
        ("redis", "9.0.0", "pip install 'redis>=5.0,<9'"),
        ("redis", "4.6.0", "pip install 'redis>=5.0,<9'"),
    ],
)
def test_others_are_refused_unless_somebody_takes_the_risk(
    project, version, pin, monkeypatch, caplog
):
    use(monkeypatch, project, version)
    if project == "redis":
        use(monkeypatch, "kombu", "5.6.2")  # a later one refuses the oldest by itself
    with pytest.raises(UnsupportedVersion) as raised:
        check_versions()
    oldest, newest, _ = versions.TESTED[project]
    tested = f"tested with {project} {oldest} to {newest}, not with {version}"
    for part in (tested, "No job was claimed", pin, "SUPERFETCH_ANY_VERSION=1"):
        assert part in str(raised.value)
    assert not caplog.records

    monkeypatch.setenv("SUPERFETCH_ANY_VERSION", "1")
    check_versions()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert tested in record.getMessage()
    assert pin in record.getMessage()


def test_who_has_no_celery_is_not_asked_for_one(monkeypatch):
    use(monkeypatch, "celery", "5.8.0")
    with pytest.raises(UnsupportedVersion):
        check_versions()
    monkeypatch.delitem(sys.modules, "celery")
    check_versions()
