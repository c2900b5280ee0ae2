"""Run the demo: `python -m examples.demo`. Exits 0 only if each job finished exactly once. With
`--page` its workers keep running, with a web page, until a signal ends them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import redis
from rich.console import Console
from rich.text import Text

from .processes import DemoError, start_server

ENDINGS = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
CONSOLE = Console(highlight=False, soft_wrap=True)
STARTED = time.monotonic()
PAGE_PORT = 5566

#: Variables that the command ``celery`` reads.
COMMAND_VARIABLES = ("BROKER_URL", "RESULT_BACKEND", "LOADER", "CONFIG_MODULE", "WORKDIR")


class Stopped(BaseException):
    """A signal asked the demo to end."""


def main() -> int:
    """Parse, run, and leave nothing behind."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--url",
        help="use this server (redis://..., rediss://...) instead of an embedded one; the demo "
        "touches no keys but its own, and deletes them at the end",
    )
    parser.add_argument(
        "--stock", action="store_true", help="the same storm on kombu's own transport; exits 1"
    )
    parser.add_argument(
        "--clean", action="store_true", help="delete what a killed demo has left there, then run"
    )
    parser.add_argument(
        "--record", type=Path, help="keep what happened as JSON in this file, for a picture"
    )
    parser.add_argument(
        "--page",
        type=int,
        nargs="?",
        const=PAGE_PORT,
        metavar="PORT",
        help="keep workers running, with load, a kill and a poison pill, and serve the web page "
        f"until Ctrl-C (default port: {PAGE_PORT}, or a free one)",
    )
    options = parser.parse_args()
    if options.page is not None and (options.stock or options.record):
        parser.error("--page has no end to record, and shows no jobs of stock Celery")
    if sys.platform == "win32":
        print("The demo needs Linux or macOS: workers cannot run on Windows.", file=sys.stderr)
        return 1
    for number in ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _stop)
    # Celery, and its command, prefer these to the app's settings: with them the demo, or its
    # workers alone, would use another broker.
    for name in [name for name in os.environ if name.startswith("CELERY_")]:
        del os.environ[name]
    for name in COMMAND_VARIABLES:
        os.environ.pop(name, None)
    try:
        with tempfile.TemporaryDirectory(prefix="superfetch-demo-") as folder:
            return 0 if _run(options, Path(folder)) else 1
    except DemoError as exc:
        say(f"The demo failed: {exc}", "bold red")
        return 1
    except Stopped as exc:
        say("Stopped. Everything the demo had started is stopped, too.", "yellow")
        return 128 + int(exc.args[0])


def say(text: str, style: str = "", *, stamp: bool = True) -> None:
    """An event, with the seconds since the start."""
    seconds = f"{time.monotonic() - STARTED:5.1f} s  " if stamp else ""
    CONSOLE.print(Text(seconds, style="dim") + Text(text, style=style))


def _stop(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second Ctrl-C must not cut the clean-up short.
    for other in ENDINGS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def _run(options: argparse.Namespace, folder: Path) -> bool:
    url = options.url
    with ExitStack() as at_the_end:
        if not url:
            say("Starting a Valkey server for this demo alone ...")
            server, url = start_server(folder)
            at_the_end.callback(server.end)
            say(f"Server ready at {url} (pid {server.pid}).")
        elif urlsplit(url).scheme not in ("redis", "rediss"):
            raise DemoError(f"{url!r} is not a redis:// or rediss:// URL")
        # The app reads its environment when it is imported, here as in the workers.
        os.environ.update(DEMO_URL=url, DEMO_STOCK="1" if options.stock else "0")
        from .story import StockStory, Story, check_place, clean

        try:
            client = at_the_end.enter_context(redis.Redis.from_url(url))
        except ValueError as exc:
            raise DemoError(f"the URL cannot be read: {exc}") from exc
        check_place(client, options.clean)
        if options.url:
            at_the_end.callback(clean, client)
        if options.page is not None:
            from .fleet import Fleet

            story: Story = Fleet(client, folder, say, options.page)
        else:
            story = (StockStory if options.stock else Story)(client, folder, say)
        at_the_end.callback(story.end)
        kept = story.tell()
        if options.record:
            options.record.write_text(json.dumps(story.recording()))
        return kept


if __name__ == "__main__":
    sys.exit(main())
