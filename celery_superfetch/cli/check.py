"""``celery superfetch check``: for probes and Nagios."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from .session import superfetch


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
