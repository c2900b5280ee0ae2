"""Fixtures: a real server, real workers, and the end of everything that a test has started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import pools

from celery_superfetch.app.console import PARTS
from support.apps.build import build_app
from support.hosts import namespaces_available
from support.process import Process, leftovers
from support.servers.clock import NoFakeClock
from support.servers.cluster import TAG, cluster, in_slot
from support.servers.database import Database
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.server import (
    ExternalServer,
    NoServerBinary,
    NotOurServer,
    Server,
    parsed,
    server_version,
)
from support.waiting import eventually
from support.workers.cli import Result, run_superfetch, superfetch_here
from support.workers.worker import TESTS, Beat, Worker, app_env

pytest_plugins = ["support.fixtures", "support.chromium", "model.play"]

# Each process of xdist starts a server of its own; a server named by URL is one for all, and the
# tests empty its databases.
EXTERNAL = os.environ.get("SUPERFETCH_TEST_URL")
#: Where a test notes the processes it has started.
STARTED = pytest.StashKey[list[Process]]()
#: Folders in which whole workers run, and die.
WHOLE = {"workers", "evidence"}
OLDER = "the checkout was installed before it had these entry points: pip install --no-deps -e ."
ONE_AT_A_TIME = "SUPERFETCH_TEST_URL names one server for all tests: they run one at a time"


@pytest.hookimpl(optionalhook=True)  # xdist's, which need not be installed
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """`-n auto`, the default. Tests wait more than they compute: five processes for two cores, six
    at most. Tests that are named, and those whose output is looked at, run in this one."""
    named = all("::" in argument for argument in config.args)
    if EXTERNAL or named or config.option.capture == "no":
        return 0
    if config.option.dist == "no":
        # Neighbours take alike long: xdist's default would deal one process all the slow ones.
        config.option.dist = "worksteal"
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    return min(6, 5 * (os.cpu_count() or 1) // 2)


def pytest_configure(config: pytest.Config) -> None:
    if EXTERNAL and config.getoption("numprocesses", None):
        raise pytest.UsageError(f"{ONE_AT_A_TIME}; leave out -n, or say -n auto")
    if not entry_points(group=PARTS):
        raise pytest.UsageError(OLDER)
    # A shell's job in the background ignores these, and so would each worker until Celery handles
    # them: one that is told to quit while it starts would go on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_report_header(config: pytest.Config) -> str | None:
    return f"superfetch: {ONE_AT_A_TIME}" if EXTERNAL else None


def pytest_addoption(parser: pytest.Parser) -> None:
    chance = parser.getgroup("tests that throw dice")
    chance.addoption("--seed", type=int, help="begin with this seed, to see a run again")
    chance.addoption("--runs", type=int, default=1, help="runs of the campaign of troubles")
    chance.addoption("--minutes", type=float, default=1.5, help="how long the soak lasts")
    chance.addoption("--starts", type=int, default=150, help="jobs whose permits are withdrawn")
    chance.addoption("--fuzz", type=int, default=3, help="batches of odd messages for each pool")
    parser.addoption(
        "--services", action="store_true", help="all services that are rented, and not a sample"
    )
    parser.addoption(
        "--cluster", action="store_true", help="the broker is one slot of a cluster of three"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" in metafunc.fixturenames:
        metafunc.parametrize("run", range(metafunc.config.getoption("--runs")))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("netns"):
        available, reason = namespaces_available()
        if not available:
            pytest.skip(f"needs namespaces: {reason}")
    for mark in item.iter_markers("since"):
        version, reason = mark.args
        if server_version(EXTERNAL) < parsed(version):
            pytest.skip(f"needs Redis {version}, or Valkey: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Any:
    """A worker that a test has left behind would serve another's queues."""
    yield
    if item.path.relative_to(TESTS).parts[0] in WHOLE:
        try:
            eventually(lambda: not leftovers(), message="nothing runs that the test has started")
        except AssertionError as exc:
            left = leftovers()
            titles = [" ".join(process.cmdline()) for process in left]
            for process in left:
                process.kill()
            raise AssertionError(f"{exc}: {titles}") from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Show what the processes of a failed test have logged, where they are, and what is on the
    server; turn "not ours" into a skip."""
    report = yield
    if call.excinfo and not hasattr(report, "wasxfail") and (why := not_for_here(call.excinfo)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: {why}")
    if report.failed:
        processes = item.stash.get(STARTED, [])
        if call.when == "call" and (db := getattr(item, "funcargs", {}).get("db")) is not None:
            report.sections.append(("what is on the server", rest_of(db)))
            for process in processes:
                process.dump_stacks()
        for process in processes:
            report.sections.append((f"log of {process.title}", process.tail(160)))
    return report


def rest_of(db: Database) -> str:
    """The keys of a database, each with the beginning of what it holds."""
    lines = []
    try:
        for key in db.keys("*")[:60]:
            try:
                lines.append(f"{key}: {db.contents(key)!r:.600}")
            except redis.exceptions.ResponseError:  # neither a list nor a hash
                lines.append(key)
    except redis.exceptions.RedisError as exc:  # the test has ended the server
        lines.append(repr(exc))
    return "\n".join(lines)


def not_for_here(excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    """Why a test cannot run here, if that is all that its failure says."""
    if excinfo.errisinstance((NotOurServer, NoServerBinary, NoFakeClock)):
        return str(excinfo.value)
    # With --cluster. What the package sends follows, and says other things where it cannot.
    if isinstance(excinfo.value.__cause__ or excinfo.value, redis.exceptions.MovedError):
        return "it spells keys by itself, without the prefix that a cluster needs"
    return ""


@pytest.fixture(scope="session")
def server() -> Iterator[Server | ExternalServer]:
    """The run's server. Tests that kill, restart or configure one take `fresh_server`."""
    chosen = ExternalServer(EXTERNAL) if EXTERNAL else Server().start()
    yield chosen
    if EXTERNAL:
        chosen.ready_for_test((0, LEDGER_DB))  # leave nothing behind in somebody's server
    chosen.close()


@pytest.fixture(scope="session")
def home(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    """With --cluster the node that serves the tests' slot."""
    if not request.config.getoption("--cluster"):
        yield None
        return
    with cluster() as nodes:
        yield nodes.home(TAG)


@pytest.fixture
def url(server: Server | ExternalServer, home: Server | None) -> str:
    """Broker URL of an empty database; the ledger's is emptied, too."""
    server.ready_for_test((0, LEDGER_DB))
    if home is None:
        return server.url()
    home.client().flushall()
    return home.url()


@pytest.fixture
def client(url: str, home: Server | None) -> Iterator[redis.Redis]:
    """The eyes of the test in the broker's database; replies are bytes."""
    if home is not None:
        pytest.skip("it spells keys without the prefix that a cluster needs")
    with redis.Redis.from_url(url) as connection:
        yield connection


@pytest.fixture
def db(url: str, home: Server | None) -> Iterator[Database]:
    """The broker's database as an operator sees it."""
    with redis.Redis.from_url(url) as connection:
        yield Database(connection, TAG if home else "")


@pytest.fixture
def ledger(url: str, server: Server | ExternalServer) -> Iterator[Ledger]:
    book = Ledger(server.url(LEDGER_DB))
    yield book
    book.close()


@pytest.fixture
def fresh_server() -> Iterator[Callable[..., Server]]:
    """`fresh_server(appendonly=True)`: a server of the test's own, to do with as it likes."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Server(**options))


@pytest.fixture(autouse=True)
def nobodys_owner() -> Iterator[None]:
    """What a test leaves registered by this process is not the next one's."""
    yield
    process_owners = sys.modules.get("celery_superfetch.owner.process_owners")
    if process_owners is not None:
        for owner in process_owners.owners_of_process():
            owner.leave_for_good()
            if owner._heartbeat_thread is not None:  # a test left it with jobs
                owner._heartbeat_thread.stopped = True
        process_owners._owners.clear()


@pytest.fixture
def env(
    url: str, ledger: Ledger, home: Server | None, server: Server | ExternalServer
) -> Callable[..., dict[str, str]]:
    """`env(superfetch=False, conf={...}, options={...}, url=...)`: configures an app."""

    def make(**settings: Any) -> dict[str, str]:
        if home is not None and "url" not in settings:
            settings = in_slot(settings, server.url())
        return app_env(settings.pop("url", url), **{"ledger_url": ledger.url, **settings})

    return make


@pytest.fixture
def remember(request: pytest.FixtureRequest) -> Callable[[Process], None]:
    """`remember(process)`: its log is shown when the test fails."""
    return request.node.stash.setdefault(STARTED, []).append


@pytest.fixture
def keep(remember: Callable[[Process], None]) -> Iterator[Callable[[Any], Any]]:
    """`keep(process)`: it ends with the test; its log is shown when the test fails."""
    with ExitStack() as stack:

        def to_the_end(process: Any) -> Any:
            remember(process)
            return stack.enter_context(process)

        yield to_the_end


APP_SETTINGS = ("superfetch", "options", "conf", "url", "ledger_url", "result_url")


def _starter(
    kind: type[Any],
    keep: Callable[[Any], Any],
    env: Callable[..., dict[str, str]],
    directory: Path,
) -> Callable[..., Any]:
    def start(*, ready: bool = True, **settings: Any) -> Any:
        about_app = {name: settings.pop(name) for name in APP_SETTINGS if name in settings}
        extra_env = settings.pop("env", {})
        process = keep(kind({**env(**about_app), **extra_env}, directory=directory, **settings))
        return process.wait_ready() if ready else process

    return start


@pytest.fixture
def worker(
    keep: Callable[[Any], Any], env: Callable[..., dict[str, str]], tmp_path: Path
) -> Callable[..., Worker]:
    """`worker(pool="threads", concurrency=4, options={...}, host=Host("a"), ready=False, ...)`."""
    return _starter(Worker, keep, env, tmp_path)


@pytest.fixture
def beat(
    keep: Callable[[Any], Any], env: Callable[..., dict[str, str]], tmp_path: Path
) -> Callable[..., Beat]:
    return _starter(Beat, keep, env, tmp_path)


@pytest.fixture
def cli(
    env: Callable[..., dict[str, str]], make_app: Callable[..., Celery], tmp_path: Path
) -> Callable[..., Result]:
    """`cli("dead", "list", code=0, options={...})`: run it and check its exit code.

    With `process=True` in a process of its own, which takes a second to import Celery; there it
    may be of another app, and have more in its environment.
    """

    def run(
        *args: str,
        process: bool = False,
        code: int = 0,
        app: str | None = "shop",
        answer: str = "",
        environ: dict[str, str] | None = None,
        **settings: Any,
    ) -> Result:
        if not process:
            return superfetch_here(make_app(**settings), *args, code=code, answer=answer)
        configured = {**env(**settings), **(environ or {})}
        return run_superfetch(
            *args, env=configured, directory=tmp_path, code=code, app=app, answer=answer
        )

    return run


def leave_results(app: Celery) -> None:
    """Results that are collected later unsubscribe, which Celery tries for 20 s each where the
    server is gone; those of a chord know each other, and are collected in any other test."""
    consumer = getattr(app._backend, "result_consumer", None)
    if getattr(consumer, "_pubsub", None):
        consumer.stop()
        consumer._pubsub = None


@pytest.fixture
def make_app(env: Callable[..., dict[str, str]]) -> Iterator[Callable[..., Celery]]:
    """`make_app(superfetch=True, options={...}, conf={...})`: an app in this process."""
    made: list[Celery] = []

    def make(**settings: Any) -> Celery:
        made.append(build_app(env(**settings)))
        return made[-1]

    yield make
    for app in made:
        leave_results(app)
        app.close()
    # kombu keeps its pools per process: the next test's server may sit on the same URL.
    pools.reset()


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    """A stock producer: whatever it sends, a worker with the package must serve."""
    return make_app(superfetch=False)


@pytest.fixture
def shop(app: Celery, ledger: Ledger) -> SimpleNamespace:
    """The shop's tasks by name: `shop.note.delay("a")`. `shop.run("b")`: one that is held runs.
    `shop.ran("c")`: another has run."""
    tasks = {name.removeprefix("shop."): task for name, task in app.tasks.items()}

    def run(*jobs: str) -> None:
        for job in jobs:
            tasks["hold"].delay(job)
        eventually(lambda: {*jobs} <= ledger.starts().keys(), message=f"{jobs} run")

    def ran(job: str) -> None:
        tasks["note"].delay(job)
        eventually(lambda: job in ledger.finishes(), message=f"{job} has run")

    named = {name: task for name, task in tasks.items() if name.isidentifier()}
    return SimpleNamespace(run=run, ran=ran, **named)
