"""``celery superfetch metrics``: an exporter for Prometheus."""

from __future__ import annotations

import signal
from contextlib import suppress

import click
from celery.bin.base import CeleryCommand

from .session import host_option, superfetch


@superfetch.command(name="metrics", cls=CeleryCommand)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9811,
    show_default=True,
    metavar="PORT",
    help="Listen at this port; 0: at any that is free.",
)
@host_option
@click.option(
    "--once", is_flag=True, help="Print the metrics and end; exit code 1 if the broker is silent."
)
@click.pass_context
def metrics(ctx: click.Context, port: int, host: str, once: bool) -> None:
    """Serve metrics for Prometheus. This needs the extra `prometheus`."""
    from ..errors import SuperfetchError

    app = ctx.obj.app
    try:
        from ..operate.metrics import serve, text_of

        if once:
            text = text_of(app)
            click.echo(text, nl=False)
            ctx.exit("superfetch_up 1.0" not in text.splitlines())
        server = serve(app, host, port)
    except (SuperfetchError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
    named = f"[{host}]" if ":" in host else host
    click.echo(f"http://{named}:{server.server_port}/metrics", err=True)
    # As a container's first process it would not hear of TERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        signal.pause()
    server.shutdown()
