"""``celery superfetch top``: the status and the dead set, live, with keys to act on both."""

from __future__ import annotations

import sys
import time

import click

from .session import Session, command, superfetch, warn


@command(superfetch, "top")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Ask the server so often.",
)
@click.option("--once", is_flag=True, help="Print the status once, and end.")
def top(session: Session, interval: float, once: bool) -> None:
    """The status, live; with keys: look at the dead set, retry its jobs, reap.

    Without a terminal it prints the status again and again.
    """
    from redis.exceptions import RedisError

    from .status_tables import say_status

    if sys.stdin.isatty() and sys.stdout.isatty() and not (once or session.as_json):
        from .live import Top

        return Top(session, interval).run()
    while True:
        try:
            say_status(session)
        except RedisError as exc:
            if once:
                raise
            warn(f"the server cannot be asked: {exc}")
        if once:
            return None
        time.sleep(interval)
