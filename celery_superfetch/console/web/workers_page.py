"""The page's views of workers: their list, one of them with its jobs, and the form that stops one.

``page`` adds its routes. A stop is Celery's own control command (``console/workers.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ...inspector import Inspector
from ..job_texts import STATE_TITLES
from ..overview import running_text
from ..workers import STOP_EFFECT, CannotStop, memory_of, pool_of, stop, why_not_stopped
from .cache import PageCache
from .form import NOTHING_TO_DO, Form
from .frame import Frame

#: Workers in the list, unless all are asked for.
WORKERS_SHOWN = 200


class WorkersPage:
    """The views of workers."""

    def __init__(self, app: Celery, cache: PageCache, frame: Frame) -> None:
        self._app, self._cache, self._frame = app, cache, frame

    def all(self, request: Request, done: Any = None) -> Response:
        found = self._cache.workers()
        most = None if "all" in request.query_params else WORKERS_SHOWN
        rows = found["workers"][:most]
        words = {"found": found, "rows": rows, "hidden": len(found["workers"]) - len(rows)}
        return self._frame.render(request, "workers.html", done=done, **words, **WORDS)

    def single(self, request: Request) -> Response:
        found = self._cache.worker(request.path_params["owner"])
        status = 200 if found["worker"] or found["death"] else 404
        return self._frame.render(request, "worker.html", status, found=found, **WORDS)

    def change(self, request: Request, form: Form) -> Response:
        """Stop one worker; the page asks once more."""
        self._frame.check_key(request, form)
        [owner, *others] = form.get("id", [""])
        workers = self._cache.workers()["workers"]
        worker = next((row for row in workers if row["owner"] == owner), None)
        if worker is None or others:
            raise HTTPException(404, "This worker is not registered any more.")
        node = worker["node"] or owner
        if (why := why_not_stopped(worker)) is not None:
            raise HTTPException(409, f"Worker {node} cannot be stopped from here: {why}.")
        match form.get("do"):
            case ["stop"]:
                words: dict[str, Any] = {
                    "title": f"Stop worker {node}?",
                    "text": STOP_EFFECT,
                    "button": "Stop",
                }
                words |= {"do": "stop now", "back": "workers", "section": "workers"}
                return self._frame.render(request, "sure.html", ids=[owner], **words)
            case ["stop now"]:
                done = self._stop(node, workers, self._frame.author(request))
            case _:
                raise HTTPException(400, NOTHING_TO_DO)
        self._cache.clear()
        return self.all(request, done)

    def _stop(self, node: str, workers: list[dict[str, Any]], by: str) -> dict[str, Any]:
        """Stop the worker of a node name; return the outcome as the page shows it."""

        def stop_it(inspector: Inspector) -> Mapping[str, Any]:
            with inspector.audit.recording(by, "workers stop", node) as entry:
                worker = stop(self._app, workers, node)
                entry.end(f"told to stop; its running jobs: {worker['running']}")
            return worker

        try:
            worker = self._cache.use(stop_it)
        except CannotStop as exc:
            return {"text": str(exc), "is_done": False}
        text = f"worker {node} was told to stop; its running jobs: {worker['running']}"
        return {"text": text, "is_done": True}


WORDS: dict[str, Any] = {
    "pool_of": pool_of,
    "memory_of": memory_of,
    "running_text": running_text,
    "cannot_stop": why_not_stopped,
    "states": STATE_TITLES,
}
