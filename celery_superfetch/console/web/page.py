"""The page as an ASGI app: what leads where, and who may change something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from celery import Celery
from celery.exceptions import OperationalError
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ...errors import JobNotFound, SuperfetchError
from ...model.words import number
from .access import HEADERS, Access, Headers
from .form import FORM_MAX_BYTES, SMALL_FORM_MAX_BYTES, Form, parse_form, read_body
from .guesses import Guesses
from .origins import is_from_page, page_root
from .secret_names import HIDE, Hide
from .seen import BUSY_S, Busy, Seen
from .shown import ENDS, FILTERS, JOB_STATES, shown

HERE = Path(__file__).parent

#: Digits of the number of a dead job; Python refuses to read more than some thousand.
DIGITS_MOST = 9

#: Seconds in which workers answer that they have heard of a revoke.
HEARD = 1.0

REVOKED = (
    "The job is not kept in the dead set, and does not run again. Workers keep the task id in "
    "memory, and forget it when all restart, unless they use --statedb."
)

POOL_CANNOT = "its pool cannot end a run: the job runs on, and only the worker's end ends it"

UNHEARD = (
    "no worker answered, and only those that hear of a revoke keep to it: the jobs may run later. "
    "Start a worker, and revoke them again before they are due"
)

NOT_FROM_PAGE = (
    "The browser does not say that this form is from this page. A proxy has to pass Host and "
    "X-Forwarded-Proto on, and --proxy has to name it. A program has to send Origin."
)

ASK_FOR_TOKEN = "This page wants the token that it was started with."
CODE_REFUSED = (
    "The code in this address does not log in: it does so once. Give the token that the page was "
    "started with, or has printed beside the address."
)


def create_app(
    celery_app: Celery,
    read_only: bool = True,
    token: str | None = None,
    hide: Hide = HIDE,
) -> Starlette:
    """The page of a Celery app, to serve or to mount.

    >>> app.mount("/superfetch", create_app(celery_app))

    Arguments:
        read_only: the page cannot retry, delete, revoke or terminate a job.
        token: what a browser is asked for, or a program sends as ``Authorization: Bearer``; its
            sessions are in the memory of this process. None: each visitor may see the page, so
            mount it behind a login of your own.
        hide: names of secrets; an argument, key or field is shown as ``***`` if one of them is in
            its name, without regard to case, ``-`` and ``_``. Or a callable, which is called with
            each name and returns whether it is a secret's; if it raises, all arguments of that job
            are hidden.

    Raises:
        ConfigError: the token is too short, or not ASCII.
    """
    return page_for(celery_app, read_only, Access(token), hide)


def page_for(celery_app: Celery, read_only: bool, access: Access, hide: Hide = HIDE) -> Starlette:
    """Build the page for those whom ``access`` lets in."""
    page = Page(celery_app, read_only, access, hide)
    served = Starlette(
        routes=[
            Route("/", page.guarded(page.overview)),
            Route("/jobs", page.guarded(page.jobs)),
            Route("/jobs", page.guarded(page.end, changes=True), methods=["POST"]),
            Route("/dead", page.guarded(page.dead)),
            Route("/dead", page.guarded(page.change, changes=True), methods=["POST"]),
            Route("/dead/{id}", page.guarded(page.job)),
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
    def __init__(self, celery_app: Celery, read_only: bool, access: Access, hide: Hide) -> None:
        self._app, self._read_only, self._access = celery_app, read_only, access
        self._seen, self._guesses = Seen(celery_app, hide), Guesses()
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)

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
                    return self._logged_in(request)
                if "authorization" in request.headers:
                    await self._guesses.refuse(request)
                said = ASK_FOR_TOKEN if code is None else CODE_REFUSED
                return self._render(request, "login.html", 401, said=said)
            if code is not None:
                return RedirectResponse(page_root(request), 303)  # it need not stay in the address
            request.state.may_see = True
            if request.method != "POST":
                return await run_in_threadpool(view, request)
            _check_sender(request)
            if changes and self._read_only:
                raise HTTPException(403, "This page changes nothing: it is read-only.")
            body = await read_body(request, FORM_MAX_BYTES if changes else SMALL_FORM_MAX_BYTES)
            return await run_in_threadpool(lambda: view(request, parse_form(body)))

        return answer

    def overview(self, request: Request) -> Response:
        seen, all_rows = self._seen.overview(), "all" in request.query_params
        return self._render(
            request, "overview.html", all_rows=all_rows, found=seen["overview"], **seen
        )

    def jobs(self, request: Request, done: Any = None) -> Response:
        asked = request.query_params.get("state")
        state = asked if asked in JOB_STATES else "running"
        document = self._seen.jobs(state)
        words: dict[str, Any] = {"state": state, "states": JOB_STATES, "ends": ENDS.get(state, ())}
        return self._render(request, "jobs.html", found=document, done=done, **words)

    def dead(self, request: Request, done: Any = None) -> Response:
        first = request.query_params.get("first", "")
        is_number = first.isascii() and first.isdigit() and len(first) <= DIGITS_MOST
        at = int(first) if is_number else 0
        asked = _conditions(request)
        document = self._seen.dead(at, asked)
        words: dict[str, Any] = {"first": at, "asked": asked, "query": urlencode(asked)}
        return self._render(request, "dead.html", found=document, done=done, **words)

    def job(self, request: Request) -> Response:
        return self._render(request, "job.html", job=self._seen.dead_job(request.path_params["id"]))

    def _asked(self, request: Request, form: Form) -> list[str]:
        """The ids in a form by which something may be changed."""
        self._check_key(request, form)
        return list(dict.fromkeys(form.get("id", [])))

    def _check_key(self, request: Request, form: Form) -> None:
        if not self._access.is_own_form(request, form):
            raise HTTPException(403, "This form is of an earlier session: reload the page.")

    def _sure(self, request: Request, do: str, ids: Sequence[str], **words: Any) -> Response:
        path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
        back = f"{path.rpartition('/')[2]}?{query}"
        return self._render(request, "sure.html", do=do, ids=ids, back=back, **words)

    def end(self, request: Request, form: Form) -> Response:
        """Revoke jobs by their task ids, and terminate those that run; the page asks once more.
        Jobs of one task id are revoked together."""
        ids = self._asked(request, form)
        jobs = number(len(ids), "job")
        match form.get("do"):
            case ["terminate"]:
                title = f"Revoke and terminate {jobs}?"
                text = f"A run is ended where its pool can end one. {REVOKED}"
                words = {"title": title, "text": text, "button": "Terminate"}
                return self._sure(request, "terminate now", ids, **words)
            case ["revoke"]:
                title, text = f"Revoke {jobs}?", f"Running jobs continue. {REVOKED}"
                words = {"title": title, "text": text, "button": "Revoke"}
                return self._sure(request, "revoke now", ids, **words)
            case ["terminate now" | "revoke now" as do]:
                replies = self._app.control.revoke(
                    ids, terminate=do == "terminate now", reply=True, timeout=HEARD
                )
            case _:
                raise HTTPException(400, "This form says nothing that can be done.")
        self._seen.clear()
        return self.jobs(request, {"count": len(ids), **_heard(replies or ()), "of": len(ids)})

    def change(self, request: Request, form: Form) -> Response:
        """Retry or delete dead jobs. To retry all that match, or to delete, it asks once more."""
        ids = self._asked(request, form)
        match form.get("do"):
            case ["retry"] | ["retry all now"] as do:
                self._app.loader.import_default_modules()
                if do == ["retry"]:
                    tried = self._seen.retry(ids)
                else:
                    tried = self._seen.retry_all(_conditions(request))
                errors = [attempt.error for attempt in tried if attempt.error]
                warnings = [attempt.warning for attempt in tried if attempt.warning]
                done = {"verb": "Put back", "count": len(tried) - len(errors), "of": len(tried)}
            case ["retry all"]:
                conditions = _conditions(request)
                jobs = number(self._seen.count_dead(conditions), "dead job")
                asked = ", ".join(f"{name} {text}" for name, text in conditions.items())
                title = f"Put {jobs} of {asked} back?" if asked else f"Put all {jobs} back?"
                text = "They run again, those that died first before the others."
                words = {"title": title, "text": text, "button": "Retry all"}
                return self._sure(request, "retry all now", (), **words)
            case ["delete"]:
                title = f"Delete {number(len(ids), 'job')} for good?"
                text = f"Nobody can put {'it' if len(ids) == 1 else 'them'} back afterwards."
                words = {"title": title, "text": text, "button": "Delete"}
                return self._sure(request, "delete for good", ids, **words)
            case ["delete for good"]:
                deleted = self._seen.dead_set(lambda dead: dead.delete(*ids))
                errors = [f"{len(ids) - deleted} were gone already"] * (deleted < len(ids))
                done, warnings = {"verb": "Deleted", "count": deleted}, []
            case _:
                raise HTTPException(400, "This form says nothing that can be done.")
        self._seen.clear()
        return self.dead(request, {"of": len(ids), **done, "said": [*errors, *warnings]})

    async def login(self, request: Request) -> Response:
        _check_sender(request)
        form = parse_form(await read_body(request, SMALL_FORM_MAX_BYTES))
        [token] = form.get("token", [""])[:1]
        if self._access.is_token(token):
            return self._logged_in(request)
        await self._guesses.refuse(request)
        return self._render(request, "login.html", 401, said="That is not the token.")

    def _logged_in(self, request: Request) -> Response:
        """Begin a session, and lead to an address without a code in it."""
        response = RedirectResponse(page_root(request), 303)
        self._access.log_in(request, response)
        return response

    def logout(self, request: Request, form: Form) -> Response:
        self._check_key(request, form)
        response = RedirectResponse(page_root(request), 303)
        self._access.log_out(request, response)
        return response

    def failed(self, request: Request, exc: Exception) -> Response:
        """Say what went wrong, as a page."""
        status, text = 404 if isinstance(exc, JobNotFound) else 503, str(exc)
        if isinstance(exc, HTTPException):
            status, text = exc.status_code, exc.detail
        busy = isinstance(exc, Busy)
        words = {"text": text, "away": status == 503 and not busy}
        words["busy"] = busy and request.method != "POST"  # then the page asks again by itself
        response = self._render(request, "failed.html", status, **words)
        response.headers.update(getattr(exc, "headers", None) or {})
        if busy:
            response.headers["retry-after"] = str(BUSY_S)
        return response

    def _render(
        self, request: Request, template: str, status: int = 200, **values: Any
    ) -> Response:
        forms = self._access.forms(request)
        html = self._templates.get_template(template).render(
            base=page_root(request),
            app_name=self._app.main,
            read_only=self._read_only,
            logged_in=self._access.session(request) is not None,
            key=forms.key,
            **values,
        )
        response = HTMLResponse(html, status)
        if getattr(request.state, "may_see", False):
            forms.keep(request, response)
        return response


def broken(_: Request, __: Exception) -> Response:
    """Say that the page failed by itself. Starlette sends this outside of its middleware."""
    return PlainTextResponse("The page failed. Its log says why.\n", 500, HEADERS)


def _heard(replies: Sequence[Mapping[str, Mapping[str, str]]]) -> dict[str, Any]:
    """Say how many workers have heard of a revoke, and which of them could not end a run."""
    if not replies:
        return {"verb": "Revoked", "count": 0, "said": [UNHEARD]}
    answers = [answer for reply in replies for answer in reply.items()]
    errors = [(node, answer["error"]) for node, answer in answers if "error" in answer]
    said = [
        f"{node}: {POOL_CANNOT if 'NotImplementedError' in error else error}"
        for node, error in errors
    ]
    return {"verb": f"Told {number(len(answers), 'worker')} to revoke", "said": said}


def _conditions(request: Request) -> dict[str, str]:
    """Which dead jobs are meant, by the page's address."""
    asked = {
        name: request.query_params.get(name, "").strip() for name in ("task", "queue", "reason")
    }
    return {name: text for name, text in asked.items() if text}


def _check_sender(request: Request) -> None:
    """Refuse a form that another site, or a page on another port, may have sent."""
    if request.method == "POST" and not is_from_page(request):
        raise HTTPException(403, NOT_FROM_PAGE)
