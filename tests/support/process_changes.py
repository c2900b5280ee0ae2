"""What a run of Celery changes in its process: attributes of modules and classes of other projects,
loggers, receivers, handlers of signals, hooks.

    python -m support.process_changes SCENE BROKER [stock] [more]

plays a scene (see ``SCENES``) and prints the changes as JSON: those while it goes on, and those
that are left after it. ``stock``: without this package, for comparison; what stock changes as well
is no change of this package. ``more``: with changes that the test has to notice.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import logging
import os
import pkgutil
import signal
import socket
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

PROJECTS = ("celery", "kombu", "redis", "billiard", "vine", "gevent")
PYTHONS = (
    *("atexit", "json", "logging", "os", "pickle", "select", "signal", "socket", "ssl"),
    *("subprocess", "sys", "threading", "time", "warnings"),
)
#: Modules that need packages which are not here, or whose import changes the process by itself.
NOT_LOADED = (
    *("celery.contrib", "celery.fixups", "celery.bin", "celery.__main__", "celery.concurrency."),
    *("celery.backends.", "kombu.transport.", "redis.asyncio", "kombu.asynchronous.aws"),
)
LOADED = (
    *("celery.contrib.testing.worker", "celery.backends.redis", "celery.backends.base"),
    *("celery.concurrency.asynpool", "celery.concurrency.prefork", "celery.concurrency.thread"),
    *("celery.concurrency.solo", "celery.bin.celery", "kombu.transport.redis"),
    *("kombu.transport.virtual", "kombu.transport.memory"),
)
SIMPLE = (str, bytes, int, float, bool, type(None))
#: Classes of apps, and of proxies of the current one: an app may be changed by ``install``.
APPS = ("celery.app.base", "celery.local")
#: What Celery, kombu and gevent write down of what runs, and what they have looked up; no code.
RECORDS = (
    *("_state:", "state:", "heartbeat:all_total_count", ":successful_requests", ":timezone"),
    *("gevent.os:_", "kombu.asynchronous.hub:_current_loop", "kombu.pools:"),
    *("kombu:connections", "kombu:producers"),
    "kombu.transport.redis:Channel._fanout_queues",
)
DEEPEST = 5
REAP_INTERVAL_S = 1

Changes = dict[str, str]


def load_all() -> None:
    """Load what Celery, kombu, redis-py and billiard consist of: an import is no change."""
    for project in PROJECTS[:4]:
        for found in pkgutil.walk_packages(import_module(project).__path__, f"{project}."):
            if not found.name.startswith(NOT_LOADED):
                with suppress(Exception):
                    import_module(found.name)
    for name in LOADED:
        import_module(name)
    for lazy in map(import_module, ("celery", "kombu")):  # modules that load a name at its use
        for name in lazy.__all__:
            getattr(lazy, name)


def of_project(name: str) -> bool:
    return name.partition(".")[0] in PROJECTS


def described(value: Any) -> str:
    """What a value is. A function's description says where its code is: ``wraps`` copies names."""
    if isinstance(value, (int, float)) and not -10_000 < value < 10_000:
        return "a number"  # a time, or the identity of an object
    if isinstance(value, SIMPLE):
        return f"{value!r:.80}"
    if isinstance(value, (weakref.ref, weakref.WeakMethod)):
        return f"weak {described(value())}"
    if isinstance(value, MethodType):
        return f"method {described(value.__func__)}"
    if isinstance(value, functools.partial):
        return f"partial {described(value.func)}"
    if isinstance(value, FunctionType):
        file = Path(value.__code__.co_filename)
        return f"{file.parent.name}/{file.name}:{value.__code__.co_name}"
    if isinstance(value, (type, BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, (tuple, list)) and len(value) <= 6:
        return f"({', '.join(map(described, value))})"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


class Snapshot:
    """Paths in the process, each with the object that is there: while a snapshot exists, so do its
    objects, and no other one gets their identity."""

    def __init__(self, hooks: list[str], others: Mapping[str, Any]) -> None:
        self.found: dict[str, Any] = {}
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # lest another object gets the identity of one that was visited
        for name, module in sorted(sys.modules.items()):
            if isinstance(module, ModuleType) and (of_project(name) or name in PYTHONS):
                self._visit_module(name, module)
        for name, other in others.items():
            self._visit(name, other, DEEPEST, forced=True)
        for name, logger in [("", logging.root), *logging.Logger.manager.loggerDict.items()]:
            is_of_package = name.partition(".")[0] == "celery_superfetch"
            if isinstance(logger, logging.Logger) and not is_of_package:
                self._visit_logger(name or "root", logger)
        self._visit("logging.lastResort", vars(logging.lastResort or self), 2)
        for number in signal.Signals:
            self.found[f"handler of {number.name}"] = signal.getsignal(number)
        self._visit("warnings.filters", warnings.filters, 1)
        self._visit("environment", dict(os.environ), 1)
        self._visit("sys.meta_path", sys.meta_path, 1)
        self._visit("sys.path_hooks", sys.path_hooks, 1)
        self._visit("gc.callbacks", gc.callbacks, 1)
        self.found["socket.getdefaulttimeout()"] = socket.getdefaulttimeout()
        for hook in hooks:
            self.found[hook] = True
        for thread in threading.enumerate():
            self.found[f"thread {thread.name}"] = True

    def _visit_module(self, name: str, module: ModuleType) -> None:
        for key, value in list(vars(module).items()):
            if key.startswith("__") or isinstance(value, ModuleType):
                continue
            self.found[f"{name}:{key}"] = value
            if of_project(name):
                self._visit(f"{name}:{key}", value, DEEPEST)

    def _visit_logger(self, name: str, logger: logging.Logger) -> None:
        fresh = vars(logging.Logger(name))  # a logger that is made is no change
        for key, value in vars(logger).items():
            if key not in ("name", "parent", "manager", "_cache") and value != fresh.get(key):
                self.found[f"logger {name}.{key}"] = value if isinstance(value, SIMPLE) else True
                self._visit(f"logger {name}.{key}", value, 2)

    def _visit(self, path: str, value: Any, left: int, forced: bool = False) -> None:
        """Add what is in a class or an object of one of the projects, or in a container."""
        if left == 0 or isinstance(value, (*SIMPLE, FunctionType, ModuleType, logging.Logger)):
            return
        if not forced and (
            type(value).__module__ in APPS or any(record in path for record in RECORDS)
        ):
            return
        self._kept.append(value)
        if isinstance(value, (dict, list, tuple, set, deque)):
            if id(value) not in self._seen and len(value) < 2000:
                self._seen.add(id(value))
                self._visit_items(path, value, left - 1)
            return
        module = value.__module__ if isinstance(value, type) else type(value).__module__
        if id(value) in self._seen or not (forced or of_project(str(module))):
            return
        if isinstance(value, type) and not (forced or path == f"{module}:{value.__qualname__}"):
            return  # it is visited where it is defined
        self._seen.add(id(value))
        with suppress(TypeError):
            for key, inner in list(vars(value).items()):
                if not (key.startswith("__") and key != "__call__"):
                    self.found[f"{path}.{key}"] = inner
                    self._visit(f"{path}.{key}", inner, left - 1)

    def _visit_items(self, path: str, items: Any, left: int) -> None:
        if isinstance(items, dict):
            for key, inner in list(items.items()):
                of = f"{path}[{key!r:.60}]" if isinstance(key, SIMPLE) else f"{path}[{type(key)}]"
                self.found[of] = inner
                self._visit(of, inner, left)
        else:
            for inner in list(items):
                self.found[f"{path}[{described(inner)}]"] = True

    def changes_since(self, before: Snapshot) -> Changes:
        """What became of each path that is new, gone or another object."""
        nothing = object()
        changed = {}
        for path in {*self.found, *before.found}:
            old, new = before.found.get(path, nothing), self.found.get(path, nothing)
            if new is nothing:
                changed[path] = "gone"
            elif old is not new and not (isinstance(new, SIMPLE) and old == new):
                changed[path] = described(new)
        return changed


# -- scenes


class Stage:
    """A process in which one app is installed and another one is not."""

    def __init__(self, broker: str, is_stock: bool) -> None:
        self.broker, self.is_stock = broker, is_stock
        self.hooks = watch_hooks()
        load_all()
        from celery import Celery

        self.other = Celery("other", broker="memory://", set_as_current=False)
        self.other.conf.update(worker_hijack_root_logger=False)

        class Base(self.other.Task):  # type: ignore[name-defined, misc]
            def __call__(self, *args: Any) -> Any:
                return super().__call__(*args)

        @self.other.task(base=Base, name="other.add", shared=False)
        def add(one: int, two: int) -> int:
            return one + two

        class Shared(self.other.Task):  # type: ignore[name-defined, misc]
            name = "shared"
            # Else Celery copies them from the first app that has a use for them.
            acks_late = reject_on_worker_lost = True

            def run(self) -> int:
                return 3

            def __call__(self) -> int:
                return int(super().__call__())

        self.shared = Shared
        self.other.register_task(Shared())
        add.delay(1, 2)
        #: Visited with all that they have.
        self.others = {
            "the other app": self.other,
            "its tasks": {name: vars(task) for name, task in self.other.tasks.items()},
            "its class of a task": type(add),
            "its base class": Base,
            "its amqp": self.other.amqp,
            "its backend": self.other.backend,
            "its connection": self.other.connection_for_write(),
            "a task's class": self.shared,
        }
        self.before = Snapshot(self.hooks, self.others)
        self.during: Changes = {}

    def make_app(self) -> Any:
        from celery import Celery

        app = Celery("shop", broker=self.broker, backend=self.broker, set_as_current=False)
        app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
        if not self.is_stock:
            import celery_superfetch

            celery_superfetch.install(app, reap_interval=REAP_INTERVAL_S)

        @app.task(name="shop.add", shared=False)
        def add(one: int, two: int) -> int:
            return one + two

        app.register_task(self.shared())
        add.apply_async((1, 2))
        return app

    def run_jobs(self, app: Any) -> None:
        """Send a job of each task, and wait until a worker has run both."""
        sent = [app.tasks["shop.add"].delay(1, 2), app.tasks["shared"].delay()]
        end = time.monotonic() + 60
        # Not by ``get``: Celery forbids it in the process of a worker.
        while any(app.backend.get_task_meta(one.id)["status"] != "SUCCESS" for one in sent):
            if time.monotonic() > end:
                raise TimeoutError("the jobs have not run")
            time.sleep(0.05)

    def changes(self) -> Changes:
        return Snapshot(self.hooks, self.others).changes_since(self.before)

    def look(self) -> None:
        self.during |= self.changes()


def watch_hooks() -> list[str]:
    """Make the process note the hooks that this package sets: Python does not tell which are
    set."""
    register_at_fork, register = os.register_at_fork, atexit.register
    hooks: list[str] = []

    def note(what: str) -> None:
        where = sys._getframe(2).f_globals["__name__"]
        if where.startswith("celery_superfetch"):
            hooks.append(f"{what} of {where}")

    def at_fork(**functions: Callable[[], object]) -> None:
        note("fork hook")
        register_at_fork(**functions)

    def at_exit(function: Any, *args: Any, **kwargs: Any) -> Any:
        note("exit hook")
        return register(function, *args, **kwargs)

    os.register_at_fork, atexit.register = at_fork, at_exit  # type: ignore[assignment]
    return hooks


def no_worker(stage: Stage) -> None:
    """An app is made, and sends a job: a web server, say."""
    stage.make_app()
    stage.look()


def embedded(stage: Stage, pool: str = "solo") -> None:
    """A worker starts in a thread, runs a job and stops."""
    from celery.contrib.testing.worker import start_worker

    app = stage.make_app()
    with start_worker(app, pool=pool, concurrency=1, perform_ping_check=False):
        stage.run_jobs(app)
        stage.look()


def gevent(stage: Stage) -> None:
    """The same with greenlets, where kombu was imported before gevent patched the process."""
    embedded(stage, "gevent")


def command_line(stage: Stage) -> None:
    """``celery worker``: the pool forks, and Celery handles signals. SIGINT ends it."""
    app = stage.make_app()

    def look_and_end() -> None:
        stage.run_jobs(app)
        stage.look()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=look_and_end, daemon=True).start()
    with suppress(SystemExit):
        app.worker_main(["worker", "-P", "prefork", "-c", "1"])


def beat(stage: Stage) -> None:
    """Beat sends what is due."""
    from celery.beat import Scheduler

    app = stage.make_app()
    scheduler, end = Scheduler(app), time.monotonic() + 3 * REAP_INTERVAL_S
    while time.monotonic() < end:
        scheduler.tick()
        time.sleep(0.1)
    stage.look()


def command(stage: Stage) -> None:
    """``celery superfetch ...``, which asks the server."""
    app = stage.make_app()
    if stage.is_stock:
        with app.connection_for_read() as connection:
            connection.default_channel.client.ping()
            return stage.look()
    from celery_superfetch.cli.session import opened

    context: Any = SimpleNamespace(obj=SimpleNamespace(app=app, no_color=True))
    with opened(context, as_json=False):
        return stage.look()


SCENES = {
    scene.__name__: scene for scene in (no_worker, embedded, gevent, command_line, beat, command)
}


def main(name: str, broker: str, *more: str) -> None:
    if name == "gevent":
        import kombu.utils.functional  # noqa: F401 - Celery's start does so, too
        from gevent.monkey import patch_all

        patch_all()
    out = os.dup(1)  # Celery's command line takes what is printed for a log
    stage = Stage(broker, "stock" in more)
    SCENES[name](stage)
    if "more" in more:
        change_more()
    changes = {"during": stage.during, "after": stage.changes()}
    with open(out, "w") as file:
        file.write(f"\n{json.dumps(changes)}\n")


def change_more() -> None:
    """Change what nothing else changes, each in another way: the control of the test."""
    import celery
    from celery.worker.control import Panel

    ping = Panel.data["ping"]

    @functools.wraps(ping)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return ping(*args, **kwargs)

    Panel.data["ping"] = wrapped
    celery.Task.control_of_the_test = True  # type: ignore[attr-defined]
    celery.signals.task_retry.connect(wrapped)
    logging.getLogger("celery.beat").setLevel(logging.ERROR)
    logging.getLogger("kombu").addFilter(logging.Filter("control"))
    signal.signal(signal.SIGUSR2, lambda *_: None)
    warnings.simplefilter("ignore", BytesWarning)
    time.sleep = wrapped
    os.environ["CONTROL"] = "1"
    sys.excepthook = wrapped


if __name__ == "__main__":
    main(*sys.argv[1:])
