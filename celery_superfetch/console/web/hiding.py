"""Arguments of jobs for a page: what goes by the name of a secret is shown as ``***``."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

from celery import Celery

#: Words in the names of what is hidden.
HIDE: tuple[str, ...] = (
    *("password", "passwd", "passphrase", "secret", "token", "credential", "authorization"),
    *("cookie", "session", "api_key", "apikey", "private_key", "card", "cvc", "cvv", "iban"),
)

MASK = ast.Name("***")

#: Arguments of a ``*args`` that are hidden by its name.
VARIADIC = 100


class Hiding(ast.NodeTransformer):
    """Hides what goes by a name that has one of ``names`` in it, in any case: keyword arguments,
    keys, fields, and a task's own parameters."""

    def __init__(self, names: Iterable[str]) -> None:
        words = "|".join(re.escape(name) for name in names if name) or r"(?!)"
        self._secret = re.compile(words, re.IGNORECASE)
        # Text that has a secret inside: a URL's query, JSON, XML; or, by any name, its password.
        self._telling = re.compile(
            rf"(?:{words})[\w-]*[\\\"']*\s*[:=>]|\w://[^\s/@]*:[^\s/@]+@", re.IGNORECASE
        )

    def hide(self, text: str, parameters: Sequence[str] | None = ()) -> str:
        """A text that ``repr`` has made, of a sequence perhaps, whose elements are ``parameters``
        (None: nobody knows, and they are hidden); what cannot be read is shown only if it names
        nothing."""
        if parameters is None:
            return "***" if text not in ("", "()", "[]") else text
        try:
            tree = ast.parse(text, mode="eval")
            if isinstance(tree.body, (ast.Tuple, ast.List)):
                for at, (name, _) in enumerate(zip(parameters, tree.body.elts, strict=False)):
                    if self._secret.search(name):
                        tree.body.elts[at] = MASK
            hidden = ast.unparse(self.visit(tree))
            return hidden if MASK.id in hidden else text
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            names = any(map(self._secret.search, (text, *parameters)))
            return "***" if text and (names or self._telling.search(text)) else text

    def _named(self, name: object) -> bool:
        if isinstance(name, ast.Constant):
            name = name.value
        return isinstance(name, (str, bytes)) and bool(self._secret.search(_text(name)))

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.generic_visit(node)
        for at, key in enumerate(node.keys):
            if self._named(key):
                node.values[at] = MASK
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """What the ``repr`` of many objects looks like."""
        if self._secret.search(ast.unparse(node.func)):
            return MASK
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if self._named(node.arg):
            return ast.keyword(node.arg, MASK)
        return self.generic_visit(node)

    def _sequence(self, node: ast.Tuple | ast.List) -> ast.AST:
        """A pair of a name and its value, too."""
        self.generic_visit(node)
        if len(node.elts) == 2 and self._named(node.elts[0]):
            node.elts[1] = MASK
        return node

    visit_Tuple = visit_List = _sequence

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        text = node.value if isinstance(node.value, (str, bytes)) else ""
        return MASK if self._telling.search(_text(text)) else node


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def parameters_of(app: Celery, task: str | None) -> list[str] | None:
    """Names of a task's positional parameters; None where the app does not know it."""
    run: Any = getattr(app.tasks.get(task), "run", None)
    try:
        parameters = inspect.signature(run).parameters.values()
    except (TypeError, ValueError):
        return None
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [parameter.name] * VARIADIC
        elif parameter.kind is not parameter.VAR_KEYWORD:
            names.append(parameter.name)
    return names
