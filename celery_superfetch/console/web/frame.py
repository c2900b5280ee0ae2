"""The frame of each view: its template, the key in its forms, and the question before a change.

``page`` makes one ``Frame``, and gives it to the modules with the views. Nothing is stored.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ...model.humanize import command
from .access import Access
from .filters import FILTERS, shown
from .form import Form
from .origins import page_root

HERE = Path(__file__).parent


#: Digits of a number in an address; Python refuses to read more than some thousand.
DIGITS_MOST = 9


class Frame:
    """Renders the views of one page, and checks the keys of its forms."""

    def __init__(self, app_name: str | None, read_only: bool, access: Access) -> None:
        self.app_name, self.read_only, self.access = app_name, read_only, access
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)
        self._templates.globals["command"] = command

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        forms = self.access.forms(request)
        html = self._templates.get_template(template).render(
            base=page_root(request),
            app_name=self.app_name,
            read_only=self.read_only,
            logged_in=self.access.session(request) is not None,
            key=forms.key,
            **values,
        )
        response = HTMLResponse(html, status)
        if getattr(request.state, "may_see", False):
            forms.keep(request, response)
        return response

    def author(self, request: Request) -> str:
        """Return who makes a change: the name of the token; the page and its host, if the visitor's
        token has no name."""
        return self.access.visitor(request) or f"page@{socket.gethostname()}"

    def check_key(self, request: Request, form: Form) -> None:
        """Raise if a form is not one of this browser's session."""
        if not self.access.is_own_form(request, form):
            raise HTTPException(403, "This form belongs to an earlier session: reload the page.")

    def ids_of(self, request: Request, form: Form) -> list[str]:
        """Return the ids in a form that may change jobs."""
        self.check_key(request, form)
        return list(dict.fromkeys(form.get("id", [])))

    def confirm(self, request: Request, do: str, ids: Sequence[str] = (), **words: Any) -> Response:
        """Ask whether to carry out ``do``; the answer is sent to the address of the request."""
        path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
        sender = f"{path.rpartition('/')[2]}?{query}"
        return self.render(request, "sure.html", do=do, ids=ids, back=sender, **words)


def number_of(request: Request, name: str) -> int:
    """Return a number in the address; 0 if there is none, or a text that makes no sense."""
    text = request.query_params.get(name, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= DIGITS_MOST
    return int(text) if is_number else 0
