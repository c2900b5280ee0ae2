"""Run the demo: `python -m examples.demo`. Exits 0 only if each job finished exactly once."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import redis

from .children import Children, DemoError
from .screen import Screen
from .server import Server

ENDINGS = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))


class Stopped(BaseException):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        self.number = number


def main() -> int:
    """Parse, run, and leave nothing behind."""
    options = _parse()
    if sys.platform == "win32":
        print("The demo needs Linux or macOS: workers cannot run on Windows.", file=sys.stderr)
        return 1
    for number in ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _stop)
    # Celery prefers these to what the app says: the demo must not meet another broker.
    for name in [name for name in os.environ if name.startswith("CELERY_")]:
        del os.environ[name]
    screen = Screen()
    try:
        with tempfile.TemporaryDirectory(prefix="superfetch-demo-") as folder, screen:
            return 0 if _run(options, Path(folder), screen) else 1
    except DemoError as exc:
        screen.say(f"The demo failed: {exc}", "bold red")
        return 1
    except Stopped as exc:
        screen.say("Stopped. Everything the demo had started is stopped, too.", "yellow")
        return 128 + exc.number


def _parse() -> argparse.Namespace:
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
    return parser.parse_args()


def _stop(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second Ctrl-C must not cut the clean-up short.
    for other in ENDINGS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def _run(options: argparse.Namespace, folder: Path, screen: Screen) -> bool:
    server = None
    try:
        if options.url:
            url = options.url
            if urlsplit(url).scheme not in ("redis", "rediss"):
                raise DemoError(f"{url!r} is not a redis:// or rediss:// URL")
            screen.say("Using the server named by --url.")
        else:
            screen.say("Starting a Valkey server for this demo alone ...")
            server = Server(folder)
            url = server.url
            screen.say(f"Server ready at {url} (pid {server.child.pid}).")
        return _with_server(url, options, folder, screen)
    finally:
        if server:
            server.end()


def _with_server(url: str, options: argparse.Namespace, folder: Path, screen: Screen) -> bool:
    # The app reads its environment when it is imported, here as in the workers.
    os.environ.update(DEMO_URL=url, DEMO_STOCK="1" if options.stock else "0")
    from .stage import Stage
    from .stock import StockStory
    from .story import Story

    try:
        client = redis.Redis.from_url(url)
    except ValueError as exc:
        raise DemoError(f"the URL cannot be read: {exc}") from exc
    children = Children(folder, url, options.stock)
    with client:
        stage = Stage(client, children, screen)
        stage.observer.occupy(options.clean)
        try:
            return (StockStory if options.stock else Story)(stage).tell()
        finally:
            children.end_now()
            if options.url:
                stage.observer.clean()


if __name__ == "__main__":
    sys.exit(main())
