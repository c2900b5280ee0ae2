"""``celery superfetch web``: the page, served from here."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from .session import host_option, know_tasks, superfetch


@superfetch.command(name="web", cls=CeleryCommand)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=5566,
    show_default=True,
    metavar="PORT",
    help="Listen at this port.",
)
@host_option
@click.option("--allow-changes", is_flag=True, help="Let visitors retry and delete dead jobs.")
@click.option(
    "--token",
    envvar="SUPERFETCH_WEB_TOKEN",
    show_envvar=True,
    help="Ask each browser for it; needed at any address but loopback.",
)
@click.pass_context
def web(ctx: click.Context, port: int, host: str, allow_changes: bool, token: str | None) -> None:
    """Serve a live page of all there is to see. This needs the extra `web`."""
    try:
        import uvicorn

        from ..web import create_app
        from ..web.access import OwnNamesOnly, is_loopback
    except ImportError as exc:
        raise click.ClickException(
            f"the page needs what the extra `web` installs ({exc}): "
            "pip install 'celery-superfetch[web]'"
        ) from exc
    from ..errors import SuperfetchError

    if token is None and not is_loopback(host):
        raise click.UsageError(f"others can reach {host}: say --token, or set SUPERFETCH_WEB_TOKEN")
    know_tasks(ctx.obj.app)
    try:
        page = create_app(ctx.obj.app, not allow_changes, token)
    except SuperfetchError as exc:
        raise click.ClickException(str(exc)) from exc
    named = f"[{host}]" if ":" in host else host
    click.echo(f"http://{named}:{port}/", err=True)
    served = page if token else OwnNamesOnly(page)
    uvicorn.run(served, host=host, port=port, log_level="warning", server_header=False)
