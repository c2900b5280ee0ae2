"""``celery superfetch status``: how things are."""

from __future__ import annotations

import time
from contextlib import suppress

import click
from celery.bin.base import CeleryCommand

from .session import Seconds, Session, Unreachable, complain, json_option, opened, superfetch

#: Lines of a terminal that a status leaves free, for what is said of a server that does not answer.
BELOW = 5
AGAIN = 2.0  # seconds from one status to the next, where it is watched


@superfetch.command(name="status", cls=CeleryCommand)
@click.option("--wide", is_flag=True, help="Show all columns and rows, with the workers' ids.")
@click.option(
    "--watch",
    type=Seconds(0.1),
    is_flag=False,
    flag_value=AGAIN,
    metavar="[SECONDS]",
    help=f"Show it again every SECONDS ({AGAIN:g} if you name none), until Ctrl-C.",
)
@json_option
@click.pass_context
def status(ctx: click.Context, wide: bool, watch: float | None, as_json: bool) -> None:
    """Say whether all is well, and what to do; show workers, queues, dead set. This only reads."""

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
                complain(f"{exc.message}\nIt is asked again every {watch:g} s.")
            time.sleep(watch)


def _say(session: Session, wide: bool, in_place: bool) -> None:
    """What the console says of the app's database; ``in_place``: of all that a terminal shows."""
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
        rows = sum(max(1, -(-len(click.unstyle(line)) // width)) for line in lines)
        if not in_place and 0 < tables.height <= rows:  # the first line is off the screen
            say("")
            judged.print_verdict(tables)
        if in_place:
            click.clear()
            # The first ones matter most, and would be off the screen first.
            if not tables.wide and (surplus := len(lines) - tables.height + BELOW) > 0:
                lines[-surplus:] = [f"... {surplus} more line{'s' * (surplus != 1)}"]
            click.echo("\n".join([*lines, ""]))

    session.say(judged.document(wide), say)
