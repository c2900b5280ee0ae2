"""What an installed package must bring along, checked without building one."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from celery_superfetch.app.console import PARTS
from celery_superfetch.cli.session import COMMANDS
from celery_superfetch.transport.versions import TESTED

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "celery_superfetch"
SCRIPTS = sorted((PACKAGE / "store" / "lua").glob("*.lua"))
# A script is a state transition; these are what a reader must know before its first line.
CONTRACT = ("KEYS", "ARGV", "Returns", "Crash")


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def entry_points(group: str) -> Iterator[tuple[str, Any]]:
    """The names of a group, and what each leads to."""
    for line in setup_cfg()["options.entry_points"][group].strip().splitlines():
        name, _, target = (part.strip() for part in line.partition("="))
        module, _, attribute = target.partition(":")
        yield name, getattr(import_module(module), attribute)


def required(project: str) -> SpecifierSet:
    lines = setup_cfg()["options"]["install_requires"].split()
    [found] = [one for one in map(Requirement, lines) if one.name == project]
    return found.specifier


def header(script: str) -> list[str]:
    """The comment lines a script begins with (a `#!lua` line may stand above them)."""
    lines = script.splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    comments: list[str] = []
    for line in lines:
        if not line.startswith("--"):
            break
        comments.append(line)
    return comments


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_lua_scripts_state_their_contract(path):
    lines = header(path.read_text())
    assert lines, "begins with a comment"
    assert re.match(r"-- \w", lines[0]), "its first line says what it does"
    text = "\n".join(lines)
    missing = [word for word in CONTRACT if not re.search(rf"\b{word}\b", text)]
    assert not missing


def test_data_files_are_shipped():
    patterns = setup_cfg()["options.package_data"]["celery_superfetch"].split()
    shipped = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    present = {
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".pyi"}
    }
    assert present <= shipped
    assert PACKAGE / "py.typed" in shipped, "py.typed is there"
    assert SCRIPTS, "there are scripts"


def test_pages_beside_the_docs_are_shipped():
    included = re.findall(r"^include (.*)$", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE)
    named = {name for line in included for name in line.split()}
    assert {path.name for path in ROOT.glob("*.md")} <= named
    assert all((ROOT / name).exists() for name in named)


def test_an_index_leads_to_docs_source_changes_and_issues():
    urls = setup_cfg()["metadata"]["project_urls"]
    for name in ("Documentation", "Source", "Changelog", "Issues"):
        assert re.search(rf"^{name} = https://", urls, re.MULTILINE), name


def test_each_extra_for_users_is_in_the_readme():
    ours = {"test", "smoke", "lint", "docs", "release"}
    named = re.findall(r"'\.\[(\w+)\]'", (ROOT / "README.md").read_text())
    assert {*named} - ours == {*setup_cfg()["options.extras_require"]} - ours


def test_each_extra_that_the_package_tells_of_exists():
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    named = re.findall(r"extra\s+`([\w-]+)`|celery-superfetch\[(\w+)\]", text)
    assert {*filter(None, sum(named, ()))} <= {*setup_cfg()["options.extras_require"]}


def test_the_version_is_a_literal_and_in_the_changelog():
    tree = ast.parse((PACKAGE / "model" / "version.py").read_text())
    versions = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and "__version__" in ast.unparse(node).split("=")[0]
    ]
    assert len(versions) == 1, "setuptools reads it without importing the package"
    assert f"## [{versions[0]}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_celery_command_is_named_by_click():
    """Celery shows click's name and ignores the entry point's."""
    [(name, command)] = entry_points("celery.commands")
    assert command.name == name == "superfetch"


def test_metadata_lives_in_setup_cfg_alone():
    assert "[project]" not in (ROOT / "pyproject.toml").read_text()


def test_a_workers_install_brings_nothing_of_the_console():
    lines = setup_cfg()["options"]["install_requires"].split()
    names = {Requirement(line).name for line in lines}
    assert names == {"billiard", "celery", "kombu", "packaging", "psutil", "redis"}


def test_the_core_finds_each_part_of_the_console():
    assert [*entry_points(PARTS)]
    for name, command in entry_points(COMMANDS):
        assert command.name == name, "click shows its own name"


def test_demo_and_test_extras_bring_the_same_server():
    extras = setup_cfg()["options.extras_require"]
    demo = extras["demo"].split()
    assert set(demo) <= set(extras["test"].split())


def test_a_floor_for_redis_py_is_our_own():
    """F5. That of kombu 5.5 lets in 4.5.2 (ImportError) and 4.6.0 (TypeError)."""
    assert "5.0" in required("redis")
    assert "4.6.0" not in required("redis")


@pytest.mark.parametrize("project", TESTED)
def test_what_is_depended_on_more_than_is_documented_has_an_upper_bound(project):
    """That of the versions which a worker takes."""
    oldest, newest, end = TESTED[project]
    assert required(project) == SpecifierSet(f">={oldest},<{end}")
    assert version(project) in required(project)
    assert newest in required(project)
