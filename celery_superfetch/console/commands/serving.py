"""``celery superfetch metrics`` and ``web``: what programs and browsers are served with."""

from __future__ import annotations

import secrets
import signal
from contextlib import suppress
from ipaddress import ip_network

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

#: Where a proxy on this machine comes from.
THIS_MACHINE = ("127.0.0.1", "::1")


def _networks(ctx: click.Context, option: click.Parameter, addresses: tuple[str, ...]) -> list[str]:
    """Check the addresses and networks of proxies."""
    try:
        return [str(ip_network(address, strict=False)) for address in addresses]
    except ValueError as exc:
        raise click.BadParameter(f"{exc}; name it like 10.0.0.5 or 10.0.0.0/24") from exc


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
    with suppress(KeyboardInterrupt):
        # As a container's first process it would not hear of TERM.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.pause()
    server.shutdown()


@click.command(name="web", cls=CeleryCommand)
@quantity("--port", click.IntRange(1, 65535), 5566, "PORT", "Listen at this port.")
@host_option
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Let visitors retry and delete dead jobs, and revoke jobs, also those that run.",
)
@click.option(
    "--token",
    envvar="SUPERFETCH_WEB_TOKEN",
    show_envvar=True,
    help="Ask each browser for it; needed at any address but loopback. With --allow-changes and no "
    "token one is made up and printed.",
)
@click.option(
    "--proxy",
    "proxies",
    metavar="ADDRESS",
    multiple=True,
    callback=_networks,
    help="Believe the X-Forwarded-* headers of a proxy at this address or in this network, as of "
    "one on this machine. May be given several times.",
)
@click.pass_context
def web(
    ctx: click.Context,
    port: int,
    host: str,
    allow_changes: bool,
    token: str | None,
    proxies: list[str],
) -> None:
    """Serve a live page of all there is to see. This needs the extra `web`."""
    try:
        from ..web.access import Access, OwnNamesOnly
        from ..web.page import page_for
        from ..web.server import serve
    except ImportError as exc:
        raise click.ClickException(
            f"the page needs what the extra `web` installs ({exc}): "
            "pip install 'celery-superfetch[web]'"
        ) from exc
    if token is None and not is_loopback(host):
        raise click.UsageError(f"others can reach {host}: say --token, or set SUPERFETCH_WEB_TOKEN")
    know_tasks(ctx.obj.app)
    try:
        # Every user of this machine reaches loopback, and could delete and kill jobs.
        made_up, code = None, None
        if allow_changes and token is None:
            made_up, code = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        access = Access(made_up or token, code)
        page = page_for(ctx.obj.app, not allow_changes, access)
        sockets = listening_sockets(host, port)  # or uvicorn would end with an exit code of its own
    except (SuperfetchError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
    _say_where(host, port, f"?token={code}" if code else "")
    if made_up:
        click.echo(f"This address logs in once. For another browser: token {made_up}", err=True)
    served = page if token else OwnNamesOnly(page)
    with suppress(KeyboardInterrupt):
        if not serve(served, sockets, forwarded_allow_ips=[*THIS_MACHINE, *proxies]):
            ctx.exit(1)


def _say_where(host: str, port: int, path: str = "") -> None:
    named = f"[{host}]" if ":" in host else host
    click.echo(f"http://{named}:{port}/{path}", err=True)
