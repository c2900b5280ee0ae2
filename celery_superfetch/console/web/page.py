"""The page as an ASGI app: its routes and views, and the checks before them.

`superfetch web` serves it, or a user's ASGI app mounts it. Nothing is stored: the modules with the
views say what happens if the process dies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from celery import Celery
from celery.exceptions import OperationalError
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ...errors import BadFilter, JobNotFound, SuperfetchError
from ..recurring import next_of, notes_of
from .access import HEADERS, Access, Headers
from .audit_page import AuditPage
from .busy import BUSY_S, Busy
from .cache import PageCache
from .charts_page import words_of_charts
from .dead_page import DeadPage
from .form import (
    FORM_MAX_BYTES,
    NOTHING_TO_DO,
    SMALL_FORM_MAX_BYTES,
    Form,
    parse_form,
    read_body,
)
from .frame import HERE, Frame
from .guesses import Guesses
from .jobs_page import AskedJobs, words_of_job, words_of_search
from .origins import is_from_page, page_root
from .queue_page import NO_QUEUE, carry_out, question_of
from .revoke_page import RevokePage
from .secret_names import HIDE, Hide
from .server_page import words_of_server
from .workers_page import WorkersPage

NOT_FROM_PAGE = (
    "The browser does not confirm that this form was sent from this page. A proxy must pass Host "
    "and X-Forwarded-Proto, and --proxy must name it. A program must send Origin."
)

FULL = (
    "its memory is full (maxmemory). Make room (the view Server shows what fills it), or raise "
    "maxmemory, and try again."
)
#: Class of an error -> status of its answer; of others it is 503.
STATUS_BY_ERROR: dict[type[Exception], int] = {JobNotFound: 404, BadFilter: 400}

READ_ONLY = "This page is read-only. To change jobs, start it with --allow-changes."
ASK_FOR_TOKEN = "Enter the token with which this page was started."
CODE_REFUSED = (
    "The code in this address no longer logs in: it is valid once. Enter the token with which "
    "the page was started, or which it printed beside the address."
)


def create_app(
    celery_app: Celery,
    read_only: bool = True,
    token: str | Mapping[str, str] | None = None,
    hide: Hide = HIDE,
) -> Starlette:
    """Build the page of a Celery app, to serve or to mount.

    >>> app.mount("/superfetch", create_app(celery_app))

    Arguments:
        read_only: the page cannot retry, delete, revoke or terminate a job.
        token: what a browser is asked for, or a program sends as ``Authorization: Bearer``; its
            sessions are in the memory of this process. A mapping has a token for each name; the
            audit list names it with each change. None: each visitor may see the page, so mount it
            behind a login of your own.
        hide: names of secrets; an argument, key or field is shown as ``***`` if one of them is in
            its name, without regard to case, ``-`` and ``_``. Or a callable, which is called with
            each name and returns whether it is a secret's; if it raises, all arguments of that job
            are hidden.

    Raises:
        ConfigError: a token is too short, not ASCII, or the same as another one.
    """
    tokens = {"": token} if isinstance(token, str) else token or {}
    return page_for(celery_app, read_only, Access(tokens), hide)


def page_for(celery_app: Celery, read_only: bool, access: Access, hide: Hide = HIDE) -> Starlette:
    """Build the page for visitors that ``access`` admits."""
    page = Page(celery_app, read_only, access, hide)
    served = Starlette(
        routes=[
            Route("/", page.guarded(page.overview)),
            Route("/jobs", page.guarded(page.jobs)),
            Route("/jobs", page.guarded(page.change_jobs, changes=True), methods=["POST"]),
            Route("/find", page.guarded(page.find)),
            Route("/jobs/{id}", page.guarded(page.job_anywhere)),
            Route("/queues", page.guarded(page.queues)),
            Route("/queues", page.guarded(page.change_queue, changes=True), methods=["POST"]),
            Route("/workers", page.guarded(page.workers.all)),
            Route("/workers", page.guarded(page.workers.change, changes=True), methods=["POST"]),
            Route("/workers/{owner}", page.guarded(page.workers.single)),
            Route("/recurring", page.guarded(page.recurring)),
            Route("/dead", page.guarded(page.dead.all)),
            Route("/dead", page.guarded(page.dead.change, changes=True), methods=["POST"]),
            Route("/dead/{id}", page.guarded(page.dead.single)),
            Route("/charts", page.guarded(page.charts)),
            Route("/server", page.guarded(page.server)),
            Route("/audit", page.guarded(page.audit.all)),
            Route("/audit/{id}", page.guarded(page.audit.single)),
            Route("/audit/{id}", page.guarded(page.audit.change, changes=True), methods=["POST"]),
            Route("/login", page.login, methods=["POST"]),
            Route("/logout", page.guarded(page.logout), methods=["POST"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        middleware=[Middleware(Headers)],
        exception_handlers={
            **dict.fromkeys(
                (RedisError, OperationalError, SuperfetchError, HTTPException), page.failed
            ),
            Exception: broken,
        },
    )
    # Starlette would send /dead/ on to an absolute address: of any Host that a request names, and
    # of http:// behind a proxy that is not trusted.
    served.router.redirect_slashes = False
    return served


class Page:
    """The views of one page, and the checks before them."""

    def __init__(self, celery_app: Celery, read_only: bool, access: Access, hide: Hide) -> None:
        self._read_only, self._access = read_only, access
        self._cache, self._guesses = PageCache(celery_app, hide), Guesses()
        self._frame = Frame(celery_app.main, read_only, access)
        self.audit = AuditPage(self._cache, self._frame)
        self.dead = DeadPage(self._cache, self._frame, self.audit)
        self._revokes = RevokePage(self._cache, self._frame, self.audit)
        self.workers = WorkersPage(celery_app, self._cache, self._frame)

    def guarded(
        self, view: Callable[..., Response], changes: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap a view for those who may see it. It runs in a thread, since it waits for the server.

        Arguments:
            changes: whether it changes something, by a form of many jobs.
        """

        async def answer(request: Request) -> Response:
            # HEAD comes from a program that looks whether a link is good, and must not use it up.
            is_read = request.method not in ("HEAD", "POST")
            code = request.query_params.get("token") if is_read else None
            if not self._access.may_see(request):
                if code is not None and self._access.redeem(code):
                    return self._logged_in(request, "")
                if "authorization" in request.headers:
                    await self._guesses.refuse(request)
                reason = ASK_FOR_TOKEN if code is None else CODE_REFUSED
                return self._frame.render(request, "login.html", 401, said=reason)
            if code is not None:
                return RedirectResponse(page_root(request), 303)  # it need not stay in the address
            request.state.may_see = True
            if request.method != "POST":
                return await run_in_threadpool(view, request)
            _check_sender(request)
            if changes and self._read_only:
                raise HTTPException(403, READ_ONLY)
            body = await read_body(request, FORM_MAX_BYTES if changes else SMALL_FORM_MAX_BYTES)
            return await run_in_threadpool(lambda: view(request, parse_form(body)))

        return answer

    def overview(self, request: Request) -> Response:
        answer, all_rows = self._cache.overview(), "all" in request.query_params
        return self._frame.render(
            request, "overview.html", all_rows=all_rows, found=answer["overview"], **answer
        )

    def jobs(self, request: Request, done: Any = None) -> Response:
        asked = AskedJobs.of(request.query_params)
        document = self._cache.jobs(asked.which, asked.sort)
        return self._frame.render(request, "jobs.html", found=document, done=done, **asked.words())

    def change_jobs(self, request: Request, form: Form) -> Response:
        return self._revokes.jobs(request, form, self.jobs)

    def find(self, request: Request) -> Response:
        """Search the jobs of all states for a part of an id, or of a task's name."""
        text = request.query_params.get("text", "").strip()
        found = self._cache.find(text) if text.strip("*") else None
        return self._frame.render(request, "find.html", **words_of_search(text, found))

    def job_anywhere(self, request: Request) -> Response:
        found = self._cache.job(request.path_params["id"])
        status = 200 if found["jobs"] else 404
        return self._frame.render(request, "one_job.html", status, **words_of_job(found))

    def charts(self, request: Request) -> Response:
        values = words_of_charts(self._cache, request.query_params)
        return self._frame.render(request, "charts.html", **values)

    def server(self, request: Request) -> Response:
        return self._frame.render(request, "server.html", **words_of_server(self._cache.server()))

    def queues(self, request: Request, done: Any = None, revoked: Any = None) -> Response:
        name = request.query_params.get("name")
        if name is None:
            answer, all_rows = self._cache.overview(), "all" in request.query_params
            values = {"queues": answer["queues"], "rates": answer["rates"], "all_rows": all_rows}
            return self._frame.render(request, "queues.html", found=answer["overview"], **values)
        if not (view := self._cache.queue(name)):
            raise HTTPException(404, NO_QUEUE)
        return self._frame.render(request, "queue.html", queue=view, done=done, revoked=revoked)

    def change_queue(self, request: Request, form: Form) -> Response:
        """Pause or resume a queue, or revoke its waiting jobs; the page asks once more."""
        self._frame.check_key(request, form)
        if form.get("do", [""])[0].startswith("revoke"):
            return self._revokes.waiting(
                request, form, lambda asking, done: self.queues(asking, revoked=done)
            )
        name = request.query_params.get("name", "")
        match form.get("do"):
            case ["pause" | "resume" as do]:
                words = self._cache.use(lambda inspector: question_of(inspector, do, name))
                return self._frame.confirm(request, f"{do} now", **words)
            case ["pause now" | "resume now" as do]:
                verb = do.partition(" ")[0]
                by = self._frame.author(request)
                done = self._cache.use(lambda inspector: carry_out(inspector, verb, name, by))
            case _:
                raise HTTPException(400, NOTHING_TO_DO)
        self._cache.clear()
        return self.queues(request, done)

    def recurring(self, request: Request) -> Response:
        found = self._cache.recurring()
        words: dict[str, Any] = {"notes": [*notes_of(found)], "next_of": next_of}
        return self._frame.render(request, "recurring.html", found=found, **words)

    async def login(self, request: Request) -> Response:
        _check_sender(request)
        form = parse_form(await read_body(request, SMALL_FORM_MAX_BYTES))
        [token] = form.get("token", [""])[:1]
        if (name := self._access.name_of(token)) is not None:
            return self._logged_in(request, name)
        await self._guesses.refuse(request)
        return self._frame.render(request, "login.html", 401, said="Wrong token.")

    def _logged_in(self, request: Request, name: str) -> Response:
        """Begin a session of a token, and lead to an address without a code in it."""
        response = RedirectResponse(page_root(request), 303)
        self._access.log_in(request, response, name)
        return response

    def logout(self, request: Request, form: Form) -> Response:
        self._frame.check_key(request, form)
        response = RedirectResponse(page_root(request), 303)
        self._access.log_out(request, response)
        return response

    def failed(self, request: Request, exc: Exception) -> Response:
        """Answer an error with a page."""
        status, text = STATUS_BY_ERROR.get(type(exc), 503), str(exc)
        if isinstance(exc, HTTPException):
            status, text = exc.status_code, exc.detail
        busy = isinstance(exc, Busy)
        refused = isinstance(exc, ResponseError)
        if refused:  # it has answered: who reads that it is away would look for a network fault
            text = f"Redis refused this: {FULL if isinstance(exc, OutOfMemoryError) else text}"
        words = {"text": text, "away": status == 503 and not busy and not refused}
        words["busy"] = busy and request.method != "POST"  # then the page asks again by itself
        response = self._frame.render(request, "failed.html", status, **words)
        response.headers.update(getattr(exc, "headers", None) or {})
        if busy:
            response.headers["retry-after"] = str(BUSY_S)
        return response


def broken(_: Request, __: Exception) -> Response:
    """Answer an error of the page itself. Starlette sends this outside of its middleware."""
    return PlainTextResponse("The page failed. Its log says why.\n", 500, HEADERS)


def _check_sender(request: Request) -> None:
    """Refuse a form that another site, or a page on another port, may have sent."""
    if request.method == "POST" and not is_from_page(request):
        raise HTTPException(403, NOT_FROM_PAGE)
