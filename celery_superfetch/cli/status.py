"""``celery superfetch status``: prints the console's verdict, findings and tables; it only reads.

An operator calls it. The console (``console.health``) is loaded by its entry point.
"""

from __future__ import annotations

import time
from contextlib import suppress

import click
from celery.bin.base import CeleryCommand

from .session import Seconds, Session, Unreachable, complain, json_option, opened, superfetch

#: Lines of a terminal that a status leaves free, for the message about a server that does not
#: answer.
LINES_BELOW = 5
WATCH_INTERVAL_S = 2.0  # seconds from one status to the next, where it is watched


@superfetch.command(name="status", cls=CeleryCommand)
@click.option(
    "--wide", is_flag=True, help="Show all columns and rows, with the ids of the workers."
)
@click.option(
    "--watch",
    type=Seconds(0.1),
    is_flag=False,
    flag_value=WATCH_INTERVAL_S,
    metavar="[SECONDS]",
    help=f"Show it again every SECONDS (default: {WATCH_INTERVAL_S:g}), until Ctrl-C.",
)
@json_option
@click.pass_context
def status(ctx: click.Context, wide: bool, watch: float | None, as_json: bool) -> None:
    """Show whether all is well, and what to do.

    It also shows the workers, the queues and the dead set. Read-only.
    """

    def show() -> None:  # by a new connection: after a failover the server is another one
        with opened(ctx, as_json) as session:
            _say(session, wide, in_place=watch is not None)

    if watch is None:
        return show()
    with suppress(KeyboardInterrupt):
        while True:
            try:
                show()
            except Unreachable as exc:
                click.clear()
                complain(f"{exc.message}\nTried again every {watch:g} s.")
            time.sleep(watch)


def _say(session: Session, wide: bool, in_place: bool) -> None:
    """Print the console's status of the app's database; ``in_place``: over the one before."""
    from ..app.console import load_part

    judged = load_part("judge")(session.inspector)

    def say() -> None:
        tables, lines = session.tables, list[str]()
        say, width = tables.say, tables.width  # ``wide`` makes that infinite

        def keep(line: str) -> None:
            lines.append(line)
            if not in_place:
                say(line)

        tables.say = keep
        judged.print(tables, wide)
        # An address of the runbook may be longer than a row of the terminal.
        rows = [max(1, -(-len(click.unstyle(line)) // width)) for line in lines]
        if not in_place and 0 < tables.height <= sum(rows):  # the first line is off the screen
            say("")
            judged.print_verdict(tables)
        if in_place:
            click.clear()
            # The first lines matter most, and would leave the screen first.
            left_out = 0
            while not tables.wide and lines and sum(rows) > tables.height - LINES_BELOW:
                left_out += 1
                lines.pop()
                rows.pop()
            if left_out:
                lines.append(f"... {left_out} more line{'s' * (left_out != 1)}")
            click.echo("\n".join([*lines, ""]))

    session.say(judged.document(wide), say)
