"""What no one has promised to keep: the docstrings of the ports list all of it, and the versions
installed have it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from celery.concurrency.prefork import TaskPool
from celery.worker.request import Request

import celery_superfetch
from celery_superfetch.worker.request import LeasedRequest
from support.documented_names import DOCUMENTED
from support.private_names import MISSING, Name, attribute, missing, names_of

ROOT = Path(celery_superfetch.__file__).parent
SOURCES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
#: The files that list the foreign names which they use.
PORTS = {path: found for path, tree in SOURCES.items() if (found := names_of(tree))}
EACH = [name for found in PORTS.values() for name in found]
STARTED = [name for name in EACH if name.path.startswith(".")]
NAMES = [name for name in EACH if name not in STARTED]
PROJECTS = {name.project for name in NAMES}
#: How many there may be: a repair of Celery, or a move of the package, makes them fewer. Only a new
#: repair of a worker that hangs or loses jobs may add one.
MOST = 127


# -- the versions installed


def test_what_jobs_rely_on_is_there():
    assert not missing([*NAMES, *DOCUMENTED])


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    """A pool of processes as a worker starts it."""
    from billiard.pool import LaxBoundedSemaphore

    pool = TaskPool(1, threads=False, semaphore=LaxBoundedSemaphore(1), initargs=())
    # It is asked for its names alone: no process is needed.
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(pool.Pool, "_create_worker_process", lambda *_: None)
    monkeypatch.setattr(pool.Pool, "did_start_ok", lambda _: True)
    pool.start()
    yield pool
    monkeypatch.undo()


def test_what_jobs_rely_on_is_there_in_a_started_pool(pool):
    assert not missing(STARTED, pool)


# -- that something is not there is seen


def test_another_name_is_missed(pool):
    for name in (*NAMES, *DOCUMENTED, *STARTED):
        path, *called = re.split(r"(?=[(])", name.path)
        renamed = name._replace(path="".join([f"{path}_renamed", *called]), since=())
        assert missing([renamed], pool)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("worker.renamed:Request._context", ""),
        ("worker.request:Request._context()", ""),  # it is no method
        ("worker.request:Request.acknowledge(one)", ""),
        ("worker.request:Request.reject(by_name=)", ""),
        ("worker.request:Request.execute_using_pool(pool)", "on_renamed"),
        ("app.task:Task.Strategy", "celery.worker.strategy:renamed"),
    ],
)
def test_another_thing_under_a_name_is_missed(path, text):
    known = path.replace("renamed", "request").partition("(")[0]
    assert not missing([Name("celery", known, "show it")])
    assert missing([Name("celery", path, "show it", (), text)])


def test_nobody_asks_an_older_version_for_what_is_newer():
    newer = Name("kombu", "connection:Connection._gone", "show it", (99, 0))
    assert not missing([newer])
    assert missing([newer._replace(since=())])


# -- the tables


def parts(names: Iterable[Name]) -> set[str]:
    """What the paths of names consist of."""
    return {part for name in names for part in re.findall(r"\w+", name.path.partition("(")[0])}


#: Names with an underscore that are no secret: of named tuples, of Python's own modules, of apps as
#: ``install`` leaves them, and the one that our own modules show each other.
NO_SECRETS = {"_asdict", "_fields", "_replace", "_exit", "_thread", "_superfetch"}
NO_SECRETS |= {"_superfetch_monitors", "_fetch", "_shutdown_lock"}


def is_private(name: str) -> bool:
    return name.startswith("_") and name.isidentifier() and name != "_" and name[1] != "_"


def defined(tree: ast.AST) -> set[str]:
    """What some code defines, or sets on ``self``."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return found


CLASSES = {
    node.name: node
    for tree in SOURCES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}


def of_class(node: ast.ClassDef) -> set[str]:
    """What a class defines, and what it inherits from others of ours."""
    bases = [CLASSES[name] for base in node.bases if (name := ast.unparse(base)) in CLASSES]
    return defined(node).union(*(of_class(base) for base in bases if base is not node))


def asked_for(tree: ast.AST, mine: set[str], of_self: set[str]) -> Iterator[str]:
    """Private names that some code uses and that are not its own."""
    for node in ast.iter_child_nodes(tree):
        inner = of_class(node) if isinstance(node, ast.ClassDef) else of_self
        yield from asked_for(node, mine, inner)
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            of = ast.unparse(node.value)
            own = of_self if of in ("self", "cls") else set() if of == "super()" else mine
            yield from {node.attr} - own
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            name = str(getattr(node.args[1], "value", ""))
            yield from [name] if is_private(name) else []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_private_name_that_is_not_our_own_is_listed(path):
    """As far as underscores tell. What is undocumented without one, only a reader finds."""
    asked = {*asked_for(SOURCES[path], defined(SOURCES[path]), set())} - NO_SECRETS
    assert not asked - parts(PORTS.get(path, ()))


def test_a_port_names_what_it_uses_and_not_what_another_one_uses():
    """The control."""
    path = ROOT / "transport" / "poller.py"
    asked = {*asked_for(SOURCES[path], defined(SOURCES[path]), set())} - NO_SECRETS
    assert asked - parts(PORTS[ROOT / "transport" / "deliveries.py"])


def test_there_are_no_more_of_them():
    assert len({(name.project, name.path.partition("(")[0]) for name in EACH}) <= MOST


def test_a_documented_name_is_used_and_is_no_foreign_one():
    code = "".join(path.read_text().partition('"""\n')[2] for path in SOURCES)
    assert [str(name) for name in DOCUMENTED if not is_used(name, code)] == []
    assert not {*map(str, DOCUMENTED)} & {*map(str, EACH)}


def our_classes() -> Iterator[type]:
    for path in SOURCES:
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for one in vars(import_module(module)).values():
            if inspect.isclass(one) and one.__module__ == module:
                yield one
    yield type("LeasedRequest", (LeasedRequest, Request), {})


def hidden_by(ours: type) -> set[str]:
    private = filter(is_private, of_class(CLASSES[ours.__name__]))
    bases = [b for b in ours.__mro__ if b.__module__.partition(".")[0] in PROJECTS]
    return {n for n in private if any(attribute(b, n) is not MISSING for b in bases)}


def test_what_a_class_of_ours_hides_of_its_base_is_listed():
    """Be it meant to be overridden, or met by chance."""
    hidden = {ours.__qualname__: hidden_by(ours) for ours in our_classes()}
    assert hidden["LeasedRequest"]
    assert not {name for names in hidden.values() for name in names} - parts(EACH)


#: Whose method is called back is told by what all such callbacks have.
TOLD = {"on_accepted": "accept_callback"}


def is_used(name: Name, source: str) -> bool:
    path = name.path.partition("(")[0].removesuffix(".values")
    last = [word for word in re.findall(r"\w+", path) if not word.startswith("__")][-1]
    text = TOLD.get(name.text, name.text)
    return bool(re.search(re.escape(text) or rf"\b{last}\b", source))


@pytest.mark.parametrize("path", PORTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_port_uses_what_it_lists(path):
    code = path.read_text().partition('"""\n')[2]  # without the docstring
    assert [str(name) for name in PORTS[path] if not is_used(name, code)] == []
