"""Make small changes of a source: drop a statement, negate a condition, replace an operator or a
constant.

`mutation.py` writes each changed source to a copy of the checkout, and runs the tests.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple


class Change(NamedTuple):
    """One change of a source."""

    text: str  # the whole source, changed
    line: int
    old: str  # of the line, or of the expression
    new: str
    nth: int  # number among the changes with this line, old and new, from 0
    span: range = range(0)  # lines of the function that is changed

    @property
    def told(self) -> dict[str, Any]:
        """The fields of the change in the results."""
        return {"line": self.line, "old": self.old, "new": self.new, "nth": self.nth}


#: Lua, outside of strings and comments: operator -> its replacement.
OPERATORS = {
    "==": "~=", "~=": "==", "<=": "<", ">=": ">", "<": "<=", ">": ">=", "+": "-", "-": "+",
    "and": "or", "or": "and", "true": "false", "false": "true",
}  # fmt: skip
#: Lua, whole strings (of commands and replies) -> their replacement.
WORDS = {
    "RPUSH": "LPUSH", "LPUSH": "RPUSH", "RPOP": "LPOP", "LPOP": "RPOP", "LT": "GT", "front": "back",
    "HSETNX": "HSET", "-inf": "+inf", "reaped": "running", "0": "1", "1": "0",
}  # fmt: skip
TOKEN = re.compile(
    r"--.*|'[^']*'|\"[^\"]*\"|[=~<>]=|[<>+]|-(?= )|\b(?:and|or|true|false)\b|\b\d+\b"
)
CONDITION = re.compile(r"\b(if|elseif|while) (.+?) (then|do)\b")
STATEMENT = re.compile(r"\s*(?!for )(redis\.p?call\(|[\w.\[\]# +,]+ = |[a-z]+\([^()]*\)$|table\.)")


def in_lua(source: str) -> Iterator[Change]:
    """Yield all changes of a Lua script, line by line. Some do not compile."""
    lines = source.split("\n")
    for at, line in enumerate(lines):
        seen: dict[str, int] = {}
        for new in [*_dropped(line), *_turned(line), *_swapped(line)]:
            nth = seen[new] = seen.get(new, -1) + 1
            text = "\n".join([*lines[:at], new, *lines[at + 1 :]])
            yield Change(text, at + 1, line, new, nth)


def _dropped(line: str) -> Iterator[str]:
    """Yield an empty line if the line is a whole statement. Declarations are not dropped: the
    script could not run without them."""
    code = line.split(" --")[0]
    whole = code.count("(") == code.count(")") and code.count("{") == code.count("}")
    if STATEMENT.match(code) and whole and not code.lstrip().startswith(("local ", "return")):
        yield ""
    inner = re.search(r" then (.+) end\s*$", code)
    if inner and code.lstrip().startswith("if "):
        yield ""
    if code.lstrip().startswith("return ") and code.startswith(" "):
        yield ""


def _turned(line: str) -> Iterator[str]:
    """Yield the line with each of its conditions negated."""
    if line.lstrip().startswith("--"):
        return
    for found in CONDITION.finditer(line):
        word, condition, then = found.groups()
        yield line[: found.start()] + f"{word} not ({condition}) {then}" + line[found.end() :]


def _swapped(line: str) -> Iterator[str]:
    """Yield the line with each operator, number or known string replaced, one at a time."""
    for found in TOKEN.finditer(line):
        token = found.group()
        if token.startswith("--"):
            return
        if token[0] in "'\"":
            new = WORDS.get(token[1:-1])
            new = new and token[0] + new + token[0]
        elif token.isdigit():
            new = str(int(token) + 1)
        else:
            new = OPERATORS.get(token)
        if new:
            yield line[: found.start()] + new + line[found.end() :]


#: Python: operator -> its replacement.
SWAPPED: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def in_python(source: str) -> Iterator[Change]:
    """Yield all changes in the functions of a Python source. Code outside of functions is data and
    names, and is not changed."""
    tree = ast.parse(source)
    seen: dict[tuple[int, str, str], int] = {}
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Lambda))]
    nodes = {id(n): (n, f) for f in functions for n in ast.walk(f)}
    whole = ast.unparse(tree)
    for node, function in nodes.values():
        span = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        for undo, dropped in _changes(node):
            new = "pass" if dropped else ast.unparse(node)
            text = ast.unparse(tree)
            undo()
            old, line = ast.unparse(dropped or node), (dropped or node).lineno
            old, new = old.split("\n")[0], new.split("\n")[0]
            nth = seen[line, old, new] = seen.get((line, old, new), -1) + 1
            if text != whole:
                yield Change(text, line, old, new, nth, span)


def _changes(node: Any) -> Iterator[Any]:
    """Change a node of a syntax tree in each manner, one at a time. Yield a function that undoes
    the change, which the caller has to call, and the statement that was dropped, or None."""

    def put(owner: Any, name: str, value: Any, dropped: ast.stmt | None = None) -> Any:
        before = getattr(owner, name)
        setattr(owner, name, value)
        return (lambda: setattr(owner, name, before)), dropped

    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield put(node, "ops", [SWAPPED[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPPED:
        yield put(node, "op", SWAPPED[type(node.op)]())
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield put(node, "test", ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield put(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        value = node.value
        yield put(node, "value", not value if isinstance(value, bool) else value + 1)
    if isinstance(node, ast.Return) and node.value is not None:
        yield put(node, "value", ast.Constant(None))
    for name in ("body", "orelse"):
        body = getattr(node, name, None)
        for at, one in enumerate(body if isinstance(body, list) else ()):
            if isinstance(one, (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise)) and not (
                isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
            ):
                yield put(node, name, [*body[:at], ast.Pass(), *body[at + 1 :]], one)
