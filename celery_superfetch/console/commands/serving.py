"""``celery superfetch metrics`` and ``web``: what programs and browsers are served with."""

from __future__ import annotations

import signal
from contextlib import suppress

import click
from celery.bin.base import CeleryCommand

from ...cli.session import know_tasks, quantity
from ...errors import SuperfetchError
from ..listener import is_loopback, listening_sockets

host_option = click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Listen at this address.",
)


@click.command(name="metrics", cls=CeleryCommand)
@quantity(
    "--port", click.IntRange(0, 65535), 9811, "PORT", "Listen at this port; 0: at any that is free."
)
@host_option
@click.option(
    "--once", is_flag=True, help="Print the metrics and end; exit code 1 if the broker is silent."
)
@click.pass_context
def metrics(ctx: click.Context, port: int, host: str, once: bool) -> None:
    """Serve metrics for Prometheus. This needs the extra `console`."""
    app = ctx.obj.app
    try:
        from ..metrics import serve, text_of

        if once:
            text = text_of(app)
            click.echo(text, nl=False)
            ctx.exit("superfetch_up 1.0" not in text.splitlines())
        server = serve(app, host, port)
    except (SuperfetchError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
    _say_where(host, server.server_port, "metrics")
    # As a container's first process it would not hear of TERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        signal.pause()
    server.shutdown()


@click.command(name="web", cls=CeleryCommand)
@quantity("--port", click.IntRange(1, 65535), 5566, "PORT", "Listen at this port.")
@host_option
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Let visitors retry and delete dead jobs, kill jobs in flight, and revoke those that have "
    "not begun.",
)
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
        from ..web.access import OwnNamesOnly
    except ImportError as exc:
        raise click.ClickException(
            f"the page needs what the extra `web` installs ({exc}): "
            "pip install 'celery-superfetch[web]'"
        ) from exc
    if token is None and not is_loopback(host):
        raise click.UsageError(f"others can reach {host}: say --token, or set SUPERFETCH_WEB_TOKEN")
    know_tasks(ctx.obj.app)
    try:
        page = create_app(ctx.obj.app, not allow_changes, token)
        sockets = listening_sockets(host, port)  # or uvicorn would end with an exit code of its own
    except (SuperfetchError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
    _say_where(host, port)
    served = page if token else OwnNamesOnly(page)
    config = uvicorn.Config(served, log_level="warning", server_header=False)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets)


def _say_where(host: str, port: int, path: str = "") -> None:
    named = f"[{host}]" if ":" in host else host
    click.echo(f"http://{named}:{port}/{path}", err=True)
