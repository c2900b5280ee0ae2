"""What all commands share: a session, and how errors are said."""

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
from celery.bin.base import CeleryCommand, handle_preload_options

if TYPE_CHECKING:
    from celery import Celery

    from ..app.dead_set import DeadSet
    from ..inspector import Inspector
    from ..reaper.reaper import Reaper
    from .tables import Tables

# The rest of the package is imported by the commands: `celery --help` pays for none of it, and
# whatever may be wrong with it, `celery` itself goes on working.

#: Seconds without an answer after which it is said that one is waited for.
PATIENCE = 3

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
    """Our commands, and those that an entry point names: the console's are loaded as they are
    called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *entry_points(group=COMMANDS).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None = super().get_command(ctx, cmd_name)
        if command is None:  # to look for it reads the metadata of all that is installed
            named = entry_points(group=COMMANDS, name=cmd_name)
            command = next((entry.load() for entry in named), None)
        return command


@click.group(name="superfetch", cls=Group)
@click.pass_context
@handle_preload_options
def superfetch(ctx: click.Context, **_: Any) -> None:
    """Look at workers, jobs and the dead set of reliable fetch, and act on them."""


@dataclass
class Session:
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
        """Say what was done of what was asked for, and on stderr what was not: then 1."""
        self.say({**done, "errors": errors}, lambda: [*map(self.tables.line, lines)])
        for error in errors[:MOST_ERRORS]:
            complain(f"Error: {_printable(error['id'])}: {error['error']}")
        if len(errors) > MOST_ERRORS:
            complain(f"and {len(errors) - MOST_ERRORS} more errors; --json has them all")
        if errors:
            raise click.exceptions.Exit(1)


def quantity(
    name: str, kind: click.FloatRange | click.IntRange, default: float, unit: str, help: str
) -> Any:
    """An option that is a number; 0 means that it is not asked for."""
    return click.option(
        name, type=kind, default=default, metavar=unit, show_default=default != 0, help=help
    )


@contextmanager
def interruptible(done: Callable[[], str]) -> Iterator[None]:
    """Say on Ctrl-C how far a long command came, by ``done``; it can be called again."""
    try:
        yield
    except KeyboardInterrupt:
        complain(f"\nInterrupted: {done()} The command may be called again.")
        raise click.exceptions.Exit(130) from None


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


class Unreachable(click.ClickException):
    """The server cannot be asked; it may be a moment later."""


def in_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command's function that gets a session, and says its errors without a traceback."""

    @json_option
    @click.pass_context
    @functools.wraps(function)
    def run(ctx: click.Context, /, *args: Any, as_json: bool, **kwargs: Any) -> Any:
        if ctx.invoked_subcommand is not None:  # a group, which only leads there
            return None
        with opened(ctx, as_json) as session:
            return function(session, *args, **kwargs)

    return run


def command(group: click.Group, name: str) -> Callable[[Callable[..., Any]], Any]:
    def decorate(function: Callable[..., Any]) -> Any:
        return group.command(name=name, cls=CeleryCommand)(in_session(function))

    return decorate


def _printable(text: object) -> str:
    from ..model.arguments import printable

    return printable(text)


def _printable_lines(text: object) -> str:
    from ..model.arguments import printable_lines

    return printable_lines(text)


@contextmanager
def opened(ctx: click.Context, as_json: bool) -> Iterator[Session]:
    """A session; what goes wrong in it is said without a traceback."""
    from celery.exceptions import OperationalError
    from redis.exceptions import RedisError

    from ..app.broker import client_of
    from ..app.dead_set import DeadSet
    from ..app.reaper import reaper_of
    from ..errors import SuperfetchError
    from ..store.redis.server import check_cluster, info
    from ..store.redis.trouble import advice_for
    from .tables import Tables

    app = ctx.obj.app
    # Where nobody said which app, Celery makes up one of its own.
    hint = "; name the app: celery -A your_app superfetch ..." if app.main == "default" else ""
    waits = threading.Timer(PATIENCE, _say_who_is_slow, (app,))
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
        text = f"the broker ({url}) cannot be asked: {why}{hint}"
        raise Unreachable(_printable(text)) from exc
    finally:
        waits.cancel()


@contextmanager
def _printable_last_resort() -> Iterator[None]:
    """Escape what Python logs to stderr where the app has set up no logging, while a command
    runs."""
    handler, own = logging.lastResort, logging.Formatter()
    if handler is not None:
        vars(handler)["format"] = lambda record: _printable_lines(own.format(record))
    try:
        yield
    finally:
        if handler is not None:
            vars(handler).pop("format", None)


def _say_who_is_slow(app: Celery) -> None:
    """Say who is waited for: otherwise the command would be taken for hung."""
    url = _uri(app)
    tls = " If it does not speak TLS, use redis:// instead of rediss://." if _is_tls(url) else ""
    complain(f"The broker ({url}) has not answered for {PATIENCE} s, and is waited for ...{tls}")


def _is_tls(url: str) -> bool:
    return url.startswith("rediss:")


def _uri(app: Celery) -> str:
    from ..transport.transport import discreet

    return discreet(app.connection_for_read())


def know_tasks(app: Celery) -> None:
    """Load the app's task modules as a worker does: the guard spares what it does not know."""
    app.loader.import_default_modules()


def complain(text: str) -> None:
    """Say something on stderr, in several lines perhaps: names of messages in it are escaped."""
    click.echo(_printable_lines(text), err=True)


def warn(text: str) -> None:
    complain(f"Warning: {_printable(text)}")
