"""``celery superfetch metrics`` and ``web``: serve the metrics and the page until a signal.

An operator calls them. They keep nothing: a process that dies leaves nothing behind.
"""

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
    help="Listen on this address.",
)

#: Addresses of a proxy on this machine.
THIS_MACHINE = ("127.0.0.1", "::1")


def _networks(ctx: click.Context, option: click.Parameter, addresses: tuple[str, ...]) -> list[str]:
    """Check the addresses and networks of proxies."""
    try:
        return [str(ip_network(address, strict=False)) for address in addresses]
    except ValueError as exc:
        raise click.BadParameter(
            f"{exc}; give an address such as 10.0.0.5, or a network such as 10.0.0.0/24"
        ) from exc


def _named_tokens(ctx: click.Context, option: click.Parameter, text: str | None) -> dict[str, str]:
    """Parse ``ann:a-long-secret bob:another-one``. Errors do not quote tokens."""
    pairs = [pair.partition(":") for pair in (text or "").split()]
    if not all(name and colon for name, colon, _ in pairs):
        raise click.BadParameter("must be NAME:TOKEN, several of them separated by spaces")
    names = [name for name, *_ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise click.BadParameter(f"two tokens have the same name: {', '.join(twice)}")
    return {name: token for name, _, token in pairs}


@click.command(name="metrics", cls=CeleryCommand)
@quantity(
    "--port", click.IntRange(0, 65535), 9811, "PORT", "Listen on this port; 0: any free port."
)
@host_option
@click.option(
    "--once",
    is_flag=True,
    help="Print the metrics and exit; exit code 1 if the broker does not answer.",
)
@click.pass_context
def metrics(ctx: click.Context, port: int, host: str, once: bool) -> None:
    """Serve metrics for Prometheus. Needs the extra `console`."""
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
@quantity("--port", click.IntRange(1, 65535), 5566, "PORT", "Listen on this port.")
@host_option
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Let visitors retry and delete dead jobs, and revoke or terminate other jobs.",
)
@click.option(
    "--token",
    envvar="SUPERFETCH_WEB_TOKEN",
    show_envvar=True,
    help="Require this token from each browser; needed at any address but loopback. With "
    "--allow-changes and no token, one is generated and printed.",
)
@click.option(
    "--tokens",
    envvar="SUPERFETCH_WEB_TOKENS",
    show_envvar=True,
    callback=_named_tokens,
    metavar="NAME:TOKEN ...",
    help="Also accept these tokens, separated by spaces; the command `audit` names the token that "
    "made a change.",
)
@click.option(
    "--proxy",
    "proxies",
    metavar="ADDRESS",
    multiple=True,
    callback=_networks,
    help="Trust the X-Forwarded-* headers of a proxy at this address or in this network; "
    "those of a proxy on this machine are trusted anyway. Can be given several times.",
)
@click.pass_context
def web(
    ctx: click.Context,
    port: int,
    host: str,
    allow_changes: bool,
    token: str | None,
    tokens: dict[str, str],
    proxies: list[str],
) -> None:
    """Serve a live web page of workers, queues and dead jobs. Needs the extra `web`."""
    try:
        from ..web.access import Access, OwnNamesOnly
        from ..web.page import page_for
        from ..web.server import serve
    except ImportError as exc:
        raise click.ClickException(
            f"the page needs the packages of the extra `web` ({exc}): pip install "
            "'celery-superfetch[web]'"
        ) from exc
    if token is not None:
        tokens = {**tokens, "": token}
    if not tokens and not is_loopback(host):
        raise click.UsageError(
            f"{host} can be reached from other hosts: set --token or SUPERFETCH_WEB_TOKEN"
        )
    know_tasks(ctx.obj.app)
    try:
        # Every user of this machine reaches loopback, and could delete and kill jobs.
        made_up, code = None, None
        if allow_changes and not tokens:
            made_up, code = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        access = Access({"": made_up} if made_up else tokens, code)
        page = page_for(ctx.obj.app, not allow_changes, access)
        sockets = listening_sockets(host, port)  # or uvicorn would end with an exit code of its own
    except (SuperfetchError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
    _say_where(host, port, f"?token={code}" if code else "")
    if made_up:
        click.echo(f"This address logs in once. Token for other browsers: {made_up}", err=True)
    served = page if tokens else OwnNamesOnly(page)
    with suppress(KeyboardInterrupt):
        if not serve(served, sockets, forwarded_allow_ips=[*THIS_MACHINE, *proxies]):
            ctx.exit(1)


def _say_where(host: str, port: int, path: str = "") -> None:
    named = f"[{host}]" if ":" in host else host
    click.echo(f"http://{named}:{port}/{path}", err=True)
