"""``celery superfetch status``, ``top``, ``doctor``, ``check``, ``slots``: how things are."""

from __future__ import annotations

import sys
import time

import click
from celery.bin.base import CeleryCommand

from .session import Session, command, know_tasks, quantity, superfetch, warn


@command(superfetch, "status")
@click.option("--wide", is_flag=True, help="Show all columns and rows, with the owners' ids.")
def status(session: Session, wide: bool) -> None:
    """Say whether all is well, and what to do; show owners, queues, dead set. This only reads."""
    from .status_tables import say_status

    say_status(session, wide)


@command(superfetch, "top")
@quantity("--interval", click.FloatRange(0.1), 2.0, "SECONDS", "Ask the server this often.")
@click.option("--once", is_flag=True, help="Print the status once, and end.")
def top(session: Session, interval: float, once: bool) -> None:
    """Show the status live, with keys to look at the dead set, to retry its jobs and to reap.

    Without a terminal it prints the status again and again.
    """
    from redis.exceptions import RedisError

    from .status_tables import say_status

    if sys.stdin.isatty() and sys.stdout.isatty() and not (once or session.as_json):
        from .live import Top

        return Top(session, interval).run()
    while not once:
        try:
            say_status(session)
        except RedisError as exc:
            warn(f"the server cannot be asked: {exc}")
        time.sleep(interval)
    return say_status(session)


@command(superfetch, "doctor")
def doctor(session: Session) -> None:
    """Examine the app and the server, and name a fix for each finding. This only reads."""
    from ..operate.doctor import diagnose
    from .status_tables import STYLES

    know_tasks(session.app)
    found = diagnose(session.app, session.reaper)

    def say() -> None:
        line = session.tables.line
        for one in found:
            line(f"{one.level.capitalize()} [{one.code}]: {one.text}.", STYLES[one.level])
            line(f"  Fix: {one.fix or 'nothing is to be done'}.")
        if not found:
            line("Nothing is wrong with the app or the server.")

    session.say({"findings": [one._asdict() for one in found]}, say)
    if any(one.level != "note" for one in found):
        raise click.exceptions.Exit(1)


@superfetch.command(
    name="check",
    cls=CeleryCommand,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def check(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Say in one line, and by the exit code, whether all is well."""
    from ..probe import main

    ctx.exit(main(words, ctx.obj.app))


@command(superfetch, "slots")
@click.argument("prefixes", nargs=-1, metavar="[PREFIX]...")
def slots(session: Session, prefixes: tuple[str, ...]) -> None:
    """Show in which slot and on which node of a cluster each PREFIX lies; by default the app's own.

    Apps, or groups of queues, share the work of a cluster when their prefixes lie on several nodes.
    """
    from ..store.wire.slots import whereabouts

    own = session.reaper.config.global_keyprefix
    found = whereabouts(session.reaper.database.client, prefixes or (own,))
    tables = session.tables
    session.say({"prefixes": found}, lambda: tables.table(("Prefix", "Slot", "Node"), found))
