"""`celery superfetch web` as a process, and browsers at it: what they send, and from where."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from celery_superfetch.console.web import create_app
from support.process import Process
from support.servers.server import free_port
from support.waiting import eventually
from support.workers.cli import superfetch_command
from support.workers.worker import process_env

#: A token of the page.
TOKEN = "correct-horse-battery"

#: All that a form may ask for: where it is posted, and what stands in `do`.
CHANGES = (
    *(("jobs", do) for do in ("terminate", "terminate now", "revoke", "revoke now")),
    *(("jobs", do) for do in ("terminate all", "terminate all now", "revoke all now")),
    *(("queues?name=mail", do) for do in ("revoke", "revoke all", "revoke all now")),
    ("audit/x", "continue"),
    *(("workers", do) for do in ("stop", "stop now")),
    *(("dead", do) for do in ("retry", "retry all", "retry all now", "delete", "delete for good")),
    *(("dead", do) for do in ("delete all", "delete all now")),
)


#: What a request may name as its host -> the status of the answer on loopback, without a token.
HOSTS = {
    "localhost": 200,
    "localhost:5566": 200,
    "127.0.0.1:5566": 200,
    "[::1]:5566": 200,
    "evil.example": 421,
    "127.0.0.1.evil.example": 421,
    "localhost.evil.example": 421,
    "evil.example#@localhost": 421,
    "localhost@evil.example": 421,
    "[": 421,
    "": 421,
}


@contextmanager
def serving(app: Any, read_only: bool = False, **options: Any) -> Iterator[str]:
    """Serve the page of an app from a thread; yields its URL."""
    port = free_port()
    page = create_app(app, read_only=read_only, **options)
    config = uvicorn.Config(page, port=port, log_level="warning", lifespan="off")
    served = uvicorn.Server(config)
    thread = threading.Thread(target=served.run, daemon=True)
    thread.start()
    eventually(lambda: served.started)
    yield f"http://127.0.0.1:{port}/"
    served.should_exit = True
    thread.join(10)


class Page(Process):
    """A page that is served: `Page(env(), tmp_path, "--allow-changes", token=None)`."""

    def __init__(
        self,
        env: Mapping[str, str],
        directory: Path,
        *options: str,
        token: str | None = TOKEN,
        port: int = 0,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        extra = {"SUPERFETCH_WEB_TOKEN": token} if token else {}
        command = superfetch_command("web", "--port", str(self.port), *options)
        log = directory / f"page-{self.port}-{free_port()}.log"
        super().__init__(command, log=log, env=process_env({**env, **extra}), title="page")

    def wait_ready(self) -> Page:
        self.wait_log("http://")  # where it is

        def answers() -> bool:
            try:
                return bool(httpx.get(self.url, headers={"host": "localhost"}).status_code)
            except httpx.TransportError:
                return False

        eventually(answers, message="the page answers")
        return self

    def browser(self, **headers: str) -> Browser:
        """A browser that is not logged in."""
        return Browser(base_url=self.url, headers={"origin": self.url[:-1], **headers})

    def logged_in(self, token: str = TOKEN) -> Browser:
        browser = self.browser()
        answer = browser.post("login", data={"token": token})
        assert answer.status_code == 303, answer.text
        return browser


class Browser(httpx.Client):
    """A client with a browser's cookies. By its `Origin` header it says where its forms are."""

    def key(self) -> str:
        """The key in the forms that it gets."""
        found = re.search(r'name="key" value="([^"]+)"', self.get("dead").text)
        assert found
        return found[1]

    def send_form(self, path: str, do: str, *ids: str, key: str | None = None, **how: Any) -> int:
        """Post a form with this key, or that of its pages; returns the status."""
        data = {"do": do, "id": list(ids), "key": self.key() if key is None else key}
        return self.post(path, data=data, **how).status_code
