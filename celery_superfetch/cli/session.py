"""The session of a command: its connection, its output and its errors.

Each command of this room, and of the console, is made by ``command``, which opens a ``Session`` and
turns errors into one line and an exit code. It stores nothing.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import handle_preload_options

if TYPE_CHECKING:
    from celery import Celery

    from ..app.dead_set import DeadSet
    from ..inspector import Inspector
    from ..reaper.reaper import Reaper
    from .tables import Tables

# The commands import the rest of the package when they run: `celery --help` does not load it, and
# works even if an import fails.

#: Seconds without an answer after which the command says that it waits for one.
SLOW_ANSWER_S = 3

#: Errors named on a terminal: more push what was done off the screen.
MOST_ERRORS = 20

#: Seconds that an option may ask for: a month. Some waits of Python and dates of Celery end sooner
#: than floats do.
SECONDS_MAX = 31 * 86_400

COMMANDS = "celery_superfetch.commands"  # group of entry points


class Seconds(click.FloatRange):
    """Number of seconds in a range. ``click.FloatRange`` accepts NaN, which is neither below nor
    above a limit, and infinity; ``time.sleep`` and a job's ``expires`` raise on both."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not seconds <= SECONDS_MAX:  # also NaN
            self.fail(f"must be a number of seconds up to {SECONDS_MAX}, got {value}", param, ctx)
        return seconds


SECONDS = Seconds(0)


class Group(click.Group):
    """The commands of this room, and those that an entry point names: a command of the console is
    loaded when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *entry_points(group=COMMANDS).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None = super().get_command(ctx, cmd_name)
        if command is None:  # the search reads the metadata of all installed packages
            named = entry_points(group=COMMANDS, name=cmd_name)
            command = next((entry.load() for entry in named), None)
        return command


@click.group(name="superfetch", cls=Group)
@click.pass_context
@handle_preload_options
def superfetch(ctx: click.Context, **_: Any) -> None:
    """Inspect and manage workers, jobs and the dead set."""


@dataclass
class Session:
    """The app, its reaper and dead set, and the output of one command."""

    app: Celery
    reaper: Reaper
    dead_set: DeadSet
    tables: Tables
    as_json: bool

    @cached_property
    def inspector(self) -> Inspector:
        from ..inspector import Inspector

        return Inspector.of(self.app, self.reaper.database.client)

    def say(self, document: Any, text: Callable[[], object]) -> None:
        if self.as_json:
            click.echo(json.dumps(document, indent=2))
        else:
            text()

    def end(
        self, done: dict[str, Any], errors: Sequence[dict[str, Any]], lines: Iterable[str]
    ) -> None:
        """Print what was done, and on stderr what failed; then the exit code is 1."""
        self.say({**done, "errors": errors}, lambda: [*map(self.tables.line, lines)])
        for error in errors[:MOST_ERRORS]:
            complain(f"Error: {_printable(error['id'])}: {error['error']}")
        if len(errors) > MOST_ERRORS:
            complain(f"and {len(errors) - MOST_ERRORS} more errors; --json lists all")
        if errors:
            raise click.exceptions.Exit(1)


def quantity(
    name: str, kind: click.FloatRange | click.IntRange, default: float, unit: str, help: str
) -> Any:
    """Make an option that is a number; its help shows the default, unless that is 0."""
    return click.option(
        name, type=kind, default=default, metavar=unit, show_default=default != 0, help=help
    )


def age(text: str) -> float:
    """Parse an age, such as ``2h``, and return it in seconds."""
    from ..model.humanize import seconds_in

    seconds = seconds_in(text)
    if seconds is None:
        raise click.BadParameter(f"must be an age such as 90, 90s, 15m, 36h or 7d, got {text!r}")
    return seconds


@contextmanager
def interruptible(done: Callable[[], str]) -> Iterator[None]:
    """Print on Ctrl-C how far a long command came (``done``); it can be called again."""
    try:
        yield
    except KeyboardInterrupt:
        complain(f"\nInterrupted: {done()} The command can be run again.")
        raise click.exceptions.Exit(130) from None


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


class Unreachable(click.ClickException):
    """The server cannot be asked; it may be a moment later."""


def in_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command's function: it gets a session, and its errors are printed without a
    traceback."""

    @json_option
    @click.pass_context
    @functools.wraps(function)
    def run(ctx: click.Context, /, *args: Any, as_json: bool, **kwargs: Any) -> Any:
        if ctx.invoked_subcommand is not None:  # a group, whose subcommand runs next
            return None
        with opened(ctx, as_json) as session:
            return function(session, *args, **kwargs)

    return run


def command(group: click.Group, name: str) -> Callable[[Callable[..., Any]], Any]:
    def decorate(function: Callable[..., Any]) -> Any:
        return group.command(name=name)(in_session(function))

    return decorate


def _printable(text: object) -> str:
    from ..model.arguments import printable

    return printable(text)


def _printable_lines(text: object) -> str:
    from ..model.arguments import printable_lines

    return printable_lines(text)


@contextmanager
def opened(ctx: click.Context, as_json: bool) -> Iterator[Session]:
    """Open a session; errors in it are printed without a traceback."""
    from celery.exceptions import OperationalError
    from redis.exceptions import RedisError

    from ..app.broker import client_of
    from ..app.dead_set import DeadSet
    from ..app.reaper import reaper_of
    from ..errors import SuperfetchError
    from ..store.redis.server import check_cluster, info
    from ..store.redis.trouble import advice_for, trouble_of
    from .tables import Tables

    app = ctx.obj.app
    # Without ``-A`` Celery makes an app of its own.
    hint = "; name the app: celery -A your_app superfetch ..." if app.main == "default" else ""
    waits = threading.Timer(SLOW_ANSWER_S, _say_who_is_slow, (app,))
    waits.daemon = True
    waits.start()
    try:
        with _printable_last_resort(), client_of(app) as client:
            reaper, tables = reaper_of(app, client), Tables(ctx.obj.no_color)
            check_cluster(info(client), reaper.config.global_keyprefix)
            waits.cancel()
            yield Session(app, reaper, DeadSet(app, client), tables, as_json)
    except SuperfetchError as exc:
        raise click.ClickException(_printable_lines(f"{exc}{hint}")) from exc
    except click.ClickException as exc:
        if type(exc) is not click.ClickException:
            raise
        raise click.ClickException(_printable_lines(exc.message)) from exc
    except (RedisError, OperationalError) as exc:  # the latter where Celery sends something
        url = _uri(app)
        advice = advice_for(exc, url)
        why = f"{str(exc).rstrip('.')}: {advice}" if advice else str(exc)
        text = f"{trouble_of(exc, f'the broker ({url})')}: {why}{hint}"
        raise Unreachable(_printable(text)) from exc
    finally:
        waits.cancel()


@contextmanager
def _printable_last_resort() -> Iterator[None]:
    """Escape what Python logs to stderr where the app has set up no logging, while a command
    runs."""
    handler, formatter = logging.lastResort, logging.Formatter()
    if handler is not None:
        vars(handler)["format"] = lambda record: _printable_lines(formatter.format(record))
    try:
        yield
    finally:
        if handler is not None:
            vars(handler).pop("format", None)


def _say_who_is_slow(app: Celery) -> None:
    """Say which server the command waits for: without that it looks hung."""
    url = _uri(app)
    tls = " If it does not speak TLS, use redis:// instead of rediss://." if _is_tls(url) else ""
    complain(f"The broker ({url}) has not answered for {SLOW_ANSWER_S} s; still waiting ...{tls}")


def _is_tls(url: str) -> bool:
    return url.startswith("rediss:")


def _uri(app: Celery) -> str:
    from ..transport.transport import masked_url

    return masked_url(app.connection_for_read())


def know_tasks(app: Celery) -> None:
    """Load the app's task modules as a worker does: the guard dead-letters no job of a task that it
    does not know."""
    app.loader.import_default_modules()


def complain(text: str) -> None:
    """Print an error on stderr, on one line or several; characters that a terminal would obey are
    escaped."""
    click.echo(_printable_lines(text), err=True)


def warn(text: str) -> None:
    complain(f"Warning: {_printable(text)}")
