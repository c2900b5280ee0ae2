"""Masking of arguments for the page: values that go by the name of a secret are shown as ``***``.

The page calls ``Hiding.job`` for each dead job. It reads the text of the arguments as Python's
``repr`` writes them, and never evaluates it. Text that cannot be read so is shown only if nothing
in it has the name of a secret.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from celery import Celery

from .secret_names import HIDE, NAME_BEFORE_VALUE, NAMING_KEYS, Hide, HideFailed, is_named_by
from .secret_urls import mask_urls, without_urls

__all__ = ["HIDE", "Hiding", "parameters_of"]

MASK = ast.Name("***")

#: Arguments of a ``*args`` that are hidden by its name.
VARIADIC_MAX = 100

#: A text among others that may be the name of the next one: a URL or a sentence is none.
NAME_IN_TEXT = re.compile(r"(?!\w+://)[\w.:/$\[\]=-]{1,80}")

#: Characters from which on a hidden value is looked for in a reason; shorter ones are in any text.
VALUE_MIN_CHARS = 3

#: Nodes of what ``repr`` writes. Others, as a comparison, are shown only if they name nothing.
PLAIN_NODES = (
    *(ast.Expression, ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Call, ast.keyword),
    *(ast.Name, ast.Attribute, ast.UnaryOp, ast.unaryop, ast.expr_context),
)

#: The name under which ``ast`` reads texts. It warns of odd ones, on the terminal of the page's
#: process; the texts are a producer's, so it is not to.
PARSED_FILE = "<arguments of a job>"
warnings.filterwarnings("ignore", module=re.escape(PARSED_FILE))

#: Errors of ``ast`` for a text that is no expression, or a very deep one.
NO_EXPRESSION = SyntaxError, ValueError, RecursionError, MemoryError


class Hiding:
    """The masking of jobs' arguments, and of the texts that may quote them.

    Arguments:
        hide: names, or a callable that is asked for each name and returns True for a secret.
    """

    def __init__(self, hide: Hide) -> None:
        self._is_secret: Callable[[str], bool] = is_named_by(hide)

    def job(
        self, record: Mapping[str, Any], parameters: Sequence[str] | None = ()
    ) -> dict[str, Any]:
        """Return a dead job's record with its arguments, its reason and its history masked. If the
        user's callable raises, all of them are hidden."""
        history = [dict(event) for event in record["history"]]
        try:
            hidden: list[str] = []
            args = self._hide(record["args"], parameters, hidden)
            kwargs = self._hide(record["kwargs"], (), hidden)
            reason = self.text(str(record["reason"]), hidden)
            for event in history:
                event["reason"] = self.text(str(event["reason"]), hidden)
        except HideFailed:
            names = "args", "kwargs", "reason"
            args, kwargs, reason = (_all_hidden(record[name]) for name in names)
            for event in history:
                event["reason"] = _all_hidden(event["reason"])
        masked = {"args": args, "kwargs": kwargs, "reason": reason, "history": history}
        return {**record, **masked}

    def hide(self, text: str, parameters: Sequence[str] | None = ()) -> str:
        """Mask a text that ``repr`` has made, of a sequence perhaps, whose elements are
        ``parameters`` (None: their names are unknown, and all of it is hidden)."""
        try:
            return self._hide(text, parameters, [])
        except HideFailed:
            return _all_hidden(text)

    def text(self, text: str, values: Iterable[str] = ()) -> str:
        """Mask a sentence, a reason for example: ``values`` that were hidden elsewhere, passwords
        and queries of URLs, and what follows the name of a secret, up to the end."""
        for value in sorted(set(values), key=len, reverse=True):
            text = re.sub(rf"(?<![^\W_]){re.escape(value)}(?![^\W_])", "***", text)
        text = mask_urls(text)
        named = next(filter(self._names_secret, NAME_BEFORE_VALUE.finditer(text)), None)
        return text if named is None else f"{text[: named.end()]}***"

    def _hide(self, text: str, parameters: Sequence[str] | None, hidden: list[str]) -> str:
        """Mask a text, and add what was masked to ``hidden``."""
        if parameters is None:
            if text in ("", "()", "[]"):
                return text
            hidden += _values_of(text)
            return "***"
        masking = _Masking(self._is_secret, self._tells)
        try:
            tree = _parsed(text)
            if isinstance(tree.body, (ast.Tuple, ast.List)):
                for at, (name, _) in enumerate(zip(parameters, tree.body.elts, strict=False)):
                    if self._is_secret(name):
                        tree.body.elts[at] = masking.mask(tree.body.elts[at])
            tree = masking.visit(tree)
            shown = ast.unparse(tree) if masking.count else text
        except NO_EXPRESSION:
            if any(map(self._is_secret, (*re.findall(r"[\w.-]+", text), *parameters))):
                hidden += _values_of(text)
                return _all_hidden(text)
            return mask_urls(text)
        hidden += masking.values
        return shown

    def _tells(self, text: str) -> bool:
        """Return whether a text has a secret inside: JSON, XML, a header, a form."""
        return any(map(self._names_secret, NAME_BEFORE_VALUE.finditer(text)))

    def _names_secret(self, match: re.Match[str]) -> bool:
        return self._is_secret(
            match["value"] or match["name"] or match["scheme"] or match["option"]
        )


class _Masking(ast.NodeTransformer):
    """The replacement of values with the name of a secret in the syntax tree of one text."""

    def __init__(self, is_secret: Callable[[str], bool], tells: Callable[[str], bool]) -> None:
        self._is_secret, self._tells = is_secret, tells
        self.values: list[str] = []  #: the text of what was masked
        self.count = 0  #: number of places that were masked

    def mask(self, node: ast.AST) -> Any:
        """Return the mask that stands in the place of ``node``."""
        self.count += 1
        self.values += _constants_of(node)
        return MASK

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, PLAIN_NODES):
            return super().visit(node)
        # Nothing that ``repr`` writes. Where its parts belong is unknown, so it is all or nothing.
        parts = re.findall(r"[\w.-]+", ast.unparse(node))
        return self.mask(node) if any(map(self._is_secret, parts)) else node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        """Mask values by their keys; of ``{"name": "password", "value": ...}`` all but the name."""
        named = any(
            _is_naming(key) and self._is_secret(_name(value))
            for key, value in zip(node.keys, node.values, strict=True)
        )
        for at, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            is_value = named and not _is_naming(key)
            if is_value or any(map(self._is_secret, _names(key))):
                node.values[at] = self.mask(value)
            else:
                node.values[at] = self.visit(value)
        node.keys = [key and self.visit(key) for key in node.keys]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Mask a call, as which ``repr`` writes many objects: a class with its fields."""
        if self._is_secret(ast.unparse(node.func)):
            return self.mask(node)
        named = any(
            keyword.arg in NAMING_KEYS and self._is_secret(_name(keyword.value))
            for keyword in node.keywords
        )
        for keyword in node.keywords:
            is_value = named and keyword.arg not in NAMING_KEYS
            if is_value or (keyword.arg is not None and self._is_secret(keyword.arg)):
                keyword.value = self.mask(keyword.value)
            else:
                keyword.value = self.visit(keyword.value)
        node.args = self._sequence(node.args)
        return node

    def visit_List(self, node: ast.List) -> ast.AST:
        node.elts = self._sequence(node.elts)
        return node

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        node.elts = self._sequence(node.elts)
        return node

    def visit_Set(self, node: ast.Set) -> ast.AST:
        node.elts = self._sequence(node.elts)
        return node

    def _sequence(self, elements: list[ast.expr]) -> list[ast.expr]:
        """Mask each element that stands after the name of a secret: a pair, or ``--password x``."""
        shown: list[ast.expr] = []
        after_name = False
        for element in elements:
            shown.append(self.mask(element) if after_name else self.visit(element))
            name = _name(element)
            after_name = bool(NAME_IN_TEXT.fullmatch(name)) and self._is_secret(name)
        return shown

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Mask within a text: of JSON or a ``repr`` its parts, of a URL its secret parts."""
        text = _text(node)
        if not text:
            return node
        if text[0] in "{[(":
            inner = _Masking(self._is_secret, self._tells)
            try:
                tree = inner.visit(_parsed(text))
                shown = ast.unparse(tree) if inner.count else text
            except NO_EXPRESSION:
                inside = any(map(self._is_secret, re.findall(r"[\w.-]+", text)))
                return self.mask(node) if inside else self._with_urls(node, text)
            self.count += inner.count
            self.values += inner.values
            return _like(node, shown) if inner.count else node
        return self._with_urls(node, text)

    def _with_urls(self, node: ast.Constant, text: str) -> ast.AST:
        shown = mask_urls(text)
        if self._tells(without_urls(text)):  # by its own words, and not by those of its URLs
            return self.mask(node)
        if shown == text:
            return node
        self.count += 1
        self.values.append(text)
        return _like(node, shown)


def _parsed(text: str) -> ast.Expression:
    """Return the syntax tree of a text; raises NO_EXPRESSION."""
    return ast.parse(text, PARSED_FILE, mode="eval")


def _name(node: ast.AST) -> str:
    """Return the name that a node is: a text, or a word as in ``<Key.PASSWORD>``; empty: none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else _text(node)


def _names(key: ast.AST | None) -> list[str]:
    """Return the names that a key says: itself, or each part of a tuple; none of ``**``."""
    parts = key.elts if isinstance(key, ast.Tuple) else filter(None, [key])
    return [_name(part) for part in parts]


def _is_naming(key: ast.AST | None) -> bool:
    return _text(key).casefold() in NAMING_KEYS


def _text(node: ast.AST | None) -> str:
    """Return the text of a constant; empty if it is none."""
    value = node.value if isinstance(node, ast.Constant) else ""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""


def _like(node: ast.Constant, text: str) -> ast.Constant:
    """Return a constant with another text, of bytes where it was of bytes."""
    return ast.Constant(text.encode() if isinstance(node.value, bytes) else text)


def _constants_of(node: ast.AST) -> list[str]:
    """Return the constants in a tree as texts, as a reason may quote them."""
    found = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
    texts = [_text(part) or repr(part.value) for part in found if not _is_word(part.value)]
    quoted = [repr(text)[1:-1] for text in texts]
    return [text for text in (*texts, *quoted) if len(text) >= VALUE_MIN_CHARS]


def _is_word(value: object) -> bool:
    """Return whether a constant is ``None``, ``True``, ``False`` or ``...``, which hide nothing."""
    return isinstance(value, (bool, type(None), type(...)))


def _values_of(text: str) -> list[str]:
    """Return the values in a text of arguments that is hidden whole, as far as it can be read."""
    try:
        return _constants_of(_parsed(text))
    except NO_EXPRESSION:
        words = re.findall(r"[\w+/=.@-]+", text)
        return [word for word in words if len(word) >= VALUE_MIN_CHARS]


def _all_hidden(text: object) -> str:
    return "***" if text else ""


def parameters_of(app: Celery, task: str | None) -> list[str] | None:
    """Return the names of a task's positional parameters; None where the app does not know it."""
    run: Any = getattr(app.tasks.get(task), "run", None)
    try:
        parameters = inspect.signature(run).parameters.values()
    except Exception:  # the user's: a ``__signature__`` may raise anything
        return None
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [parameter.name] * VARIADIC_MAX
        elif parameter.kind is not parameter.VAR_KEYWORD:
            names.append(parameter.name)
    return names
