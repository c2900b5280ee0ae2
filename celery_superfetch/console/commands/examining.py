"""``celery superfetch doctor`` and ``check``: examine the app and its server; they only read."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from ...cli.session import Session, in_session, know_tasks
from ...cli.tables import STYLES
from ..doctor import diagnose
from ..probe import main
from ..status import print_links


@click.command(name="doctor", cls=CeleryCommand)
@in_session
def doctor(session: Session) -> None:
    """Examine the app and the server, with a fix for each finding.

    Read-only.
    """
    know_tasks(session.app)
    findings = diagnose(session.app, session.inspector)

    def say() -> None:
        line = session.tables.line
        for finding in findings:
            line(
                f"{finding.level.capitalize()} [{finding.code}]: {finding.text}.",
                STYLES[finding.level],
            )
            line(f"  Fix: {finding.fix or 'no action needed'}.")
            print_links(session.tables, finding)
        if not findings:
            line("No problem was found in the app or the server.")

    session.say({"findings": [finding.as_dict() for finding in findings]}, say)
    if any(finding.level != "note" for finding in findings):
        raise click.exceptions.Exit(1)


@click.command(
    name="check",
    cls=CeleryCommand,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def check(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Print one line, and set the exit code: whether all is well."""
    ctx.exit(main(words, ctx.obj.app))
