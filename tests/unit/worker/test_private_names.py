"""What nobody has promised to keep: all of it is in the tables, and each of it is looked for."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib import metadata as installed
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from celery.concurrency.prefork import TaskPool
from celery.worker.request import Request

import celery_superfetch
from celery_superfetch.errors import SuperfetchError, UnsupportedVersion
from celery_superfetch.transport import private_names as of_consumers
from celery_superfetch.transport.private_names import Name, check
from celery_superfetch.worker import private_names as of_workers
from celery_superfetch.worker.request import CountedRequest

ROOT = Path(celery_superfetch.__file__).parent
SOURCES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
TABLES = (of_consumers.NAMES, of_consumers.GEVENTS, of_workers.NAMES, of_workers.PREFORK)
STARTED = of_workers.STARTED
PROJECTS = {name.project for table in TABLES for name in table}


def version_of(project: str) -> tuple[int, ...]:
    return tuple(map(int, installed.version(project).split(".")[:2]))


NAMES = [name for table in TABLES for name in table if version_of(name.project) >= name.since]


# -- the check


def owner_of(name: Name, started: Any) -> tuple[Any, str]:
    """Where a name stands, and the last part of its path."""
    module, _, path = name.path.partition("(")[0].rpartition(":")
    *parts, last = path.lstrip(".").split(".")
    found = import_module(f"{name.project}.{module}") if module else started
    for part in parts:
        found = getattr(found, part)
    return found, last


def rename(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """As a version does in which something is called otherwise."""
    kinds = owner.__mro__ if isinstance(owner, type) else [owner, *type(owner).__mro__]
    for kind in kinds:
        if name in vars(kind):
            monkeypatch.delattr(kind, name)
        methods = map(inspect.unwrap, vars(kind).values())
        for function in [f for f in methods if isinstance(f, FunctionType)]:
            code = function.__code__
            if name in code.co_names:
                names = tuple("new" if n == name else n for n in code.co_names)
                monkeypatch.setattr(function, "__code__", code.replace(co_names=names))


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_a_version_that_lacks_a_name_is_refused(
    name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    check([name])
    owner, last = owner_of(name, None)
    if last == "__module__":
        monkeypatch.setattr(owner, last, "celery.concurrency.pools")
    elif name.text and not isinstance(getattr(owner, last), str):
        monkeypatch.setattr(owner, last, lambda: "another text")
    elif name.text:
        monkeypatch.setattr(owner, last, "another.text")
    else:
        rename(monkeypatch, owner, last)
    with pytest.raises(UnsupportedVersion) as raised:
        check([name])
    assert isinstance(raised.value, SuperfetchError)
    for part in (f"{name.project} {installed.version(name.project)}", str(name), name.why):
        assert part in str(raised.value)


@pytest.mark.parametrize("name", [n for n in NAMES if "(" in n.path], ids=str)
@pytest.mark.parametrize(
    "shape", [lambda *, other: None, lambda: None, "a text"], ids=["other", "none", "text"]
)
def test_one_in_which_it_is_another_thing_is_refused(
    name: Name, shape: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*owner_of(name, None), shape)
    with pytest.raises(UnsupportedVersion):
        check([name])


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


@pytest.mark.parametrize("name", STARTED, ids=str)
def test_a_started_pool_that_lacks_a_name_is_refused(
    name: Name, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(STARTED, pool)
    owner, last = owner_of(name, pool)
    if hasattr(owner, "__dict__"):
        monkeypatch.setattr(owner, last, lambda *, other: None)
    else:  # a list, or a number: whoever has it has something else
        parts = name.path.lstrip(".").split(".")
        owner, last = owner_of(name._replace(path="." + ".".join(parts[:-1])), pool)
        monkeypatch.setattr(owner, last, object())
    with pytest.raises(UnsupportedVersion, match="in a started pool"):
        check(STARTED, pool)


def test_the_error_says_which_version_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["redis<8.2,>=5.0", "kombu[redis]<5.8,>=5.5", 'gevent>=24; extra == "test"']
    monkeypatch.setattr(installed, "requires", lambda _: required)
    for project, wanted in (("kombu", "kombu[redis]<5.8,>=5.5"), ("gevent", "gevent>=24")):
        with pytest.raises(UnsupportedVersion, match="Nothing was claimed") as raised:
            check([Name(project, "connection:Connection._gone", "show it")])
        assert f'(pip install "{wanted}")' in str(raised.value)


def test_nobody_asks_an_older_version_for_what_is_newer() -> None:
    check([Name("kombu", "connection:Connection._gone", "show it", (99, 0))])


def test_what_another_package_wraps_is_there_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As instrumentation does."""
    from functools import wraps

    for path, method in (
        ("pool:ApplyResult._accepted", "__init__"),
        ("pool:Pool.close()", "close"),
    ):
        owner, _ = owner_of(Name("billiard", path, ""), None)
        original = getattr(owner, method)

        @wraps(original)
        def wrapped(*args: Any, original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, method, wrapped)
        check([Name("billiard", path, "show it")])


# -- the tables

LISTED = [name for table in (*TABLES, of_workers.EVENTLETS, STARTED) for name in table]
PARTS = {part for name in LISTED for part in re.findall(r"\w+", name.path.partition("(")[0])}
#: Names with an underscore that are no secret: of named tuples, of Python's own modules, of apps as
#: ``install`` leaves them, and the one that our own modules show each other.
NO_SECRETS = {"_asdict", "_fields", "_replace", "_handlerList", "_thread", "_superfetch"}
NO_SECRETS |= {"_superfetch_monitors", "_fetch"}


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
def test_a_private_name_that_is_not_our_own_is_listed(path: Path) -> None:
    """As far as underscores tell. What is undocumented without one, nobody finds but a reader."""
    tree = SOURCES[path]
    assert set(asked_for(tree, defined(tree), set())) <= PARTS | NO_SECRETS


def our_classes() -> Iterator[type]:
    for path in SOURCES:
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for one in vars(import_module(module)).values():
            if inspect.isclass(one) and one.__module__ == module:
                yield one
    yield type("CountedRequest", (CountedRequest, Request), {})


@pytest.mark.parametrize("ours", list(our_classes()), ids=lambda one: one.__qualname__)
def test_what_a_class_of_ours_hides_of_its_base_is_listed(ours: type) -> None:
    """Be it meant to be overridden, or met by chance."""
    private = filter(is_private, of_class(CLASSES[ours.__name__]))
    bases = [b for b in ours.__mro__ if b.__module__.partition(".")[0] in PROJECTS]
    gone = of_consumers._MISSING
    hidden = [n for n in private for b in bases if of_consumers._attribute(b, n) is not gone]
    assert set(hidden) <= PARTS


@pytest.mark.parametrize("name", LISTED, ids=str)
def test_whatever_is_listed_is_used(name: Name) -> None:
    path = name.path.partition("(")[0].removesuffix(".values")
    last = [word for word in re.findall(r"\w+", path) if not word.startswith("__")][-1]
    constants = [key for key, value in vars(of_workers).items() if name.text and value == name.text]
    # Whose method is called back is told by what all such callbacks have.
    known = {"on_accepted": "accept_callback"}.get(name.text, name.text)
    words = re.compile("|".join(constants or [known or rf"\b{last}\b"]))
    texts = [path.read_text() for path in SOURCES if path.name != "private_names.py"]
    assert any(map(words.search, texts))
