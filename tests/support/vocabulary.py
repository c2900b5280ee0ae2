"""Banned words and constructions in the package's code, in its messages and in the docs.

    python tests/support/vocabulary.py [ROOM]...

prints each fault in these rooms, or in all. The constants below are the rules.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[2]
PACKAGE = HERE / "celery_superfetch"

#: A docstring or comment that opens with one of these does not say what the code does.
OPENING = re.compile(r"(What|Who|Whose|Whom|Whether|Which|Where|When|Why|How|Have|Let)\b")
#: In a comment "When" and "Where" may also begin a condition.
COMMENT_OPENING = re.compile(r"(What|Who|Whose|Whom|Whether|Which|Why|How|Have|Let)\b")
#: The first word of a function's docstring is a verb, and so none of these.
NO_VERB = re.compile(
    r"(A|An|The|It|Its|This|These|That|Those|One|Of|In|On|At|By|For|From|To|With|Without|All|Any"
    r"|Some|Every|Each|No|Not|None|True|False|Called|Done)\b"
)
#: References to a person or thing that has a name: the worker, a peer, the server, the caller.
REFERENCE = re.compile(
    r"\b(nobody|whoever|whomever|somebody|someone|anybody|everybody|ours|theirs|mine)\b", re.I
)
#: Words that the glossary replaces.
PHRASE = re.compile(
    r"\b(taken for dead|anew|uncounted|quarantin\w*|mend(?:s|ed|ing)?|convict\w*|lest|whence)\b",
    re.I,
)
#: A sentence of the docs whose subject is a clause, or that hangs on the one before.
CLAUSE = re.compile(r"(?:^|[.:] )(?:Who|Whoever|Whose|Whether|Else)\b[^?]*?(?:[.:;]|$)", re.M)
#: Names with three meanings each, or none.
NAMES = {
    *("ask", "back", "give", "given", "hand", "heard", "judge", "kept", "look", "mend", "mind"),
    *("mine", "more", "nobody", "note", "one", "ours", "own", "rest", "said", "seen", "take"),
    *("tell", "told", "turn", "way", "what", "whoever"),
}
#: Names that another project chose, or that the glossary keeps.
NAMES_KEPT = {("model/verdict.py", "judge"), ("console/health.py", "judge")}


DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


class Fault(NamedTuple):
    """A banned word or construction."""

    room: str
    kind: str
    place: str
    text: str


def room_of(path: Path) -> str:
    """Return the room of a module or the folder of a page."""
    if path.is_relative_to(PACKAGE):
        folder = path.parent.relative_to(PACKAGE).as_posix()
        return "surface" if folder == "." else folder
    return path.parent.relative_to(HERE).as_posix() if path.parent != HERE else path.name


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def pages() -> list[Path]:
    return sorted(
        [*HERE.glob("*.md"), *(HERE / "docs").rglob("*.md"), *(HERE / "evidence").rglob("*.md")]
    )


def faults() -> Iterator[Fault]:
    """Yield each fault of the package and of the pages."""
    for path in modules():
        for kind, line, text in faults_in_code(path.read_text(), _name(path)):
            yield Fault(room_of(path), kind, f"{path.relative_to(HERE)}:{line}", text)
    yield from shared_names(modules())
    for path in pages():
        for kind, line, text in faults_in_page(path.read_text()):
            yield Fault(room_of(path), kind, f"{path.relative_to(HERE)}:{line}", text)


def faults_in_code(source: str, name: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield kind, line and text of each fault of a module."""
    tree = ast.parse(source)
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (doc := ast.get_docstring(node)):
            line = node.body[0].lineno
            documented.add(line)
            yield from _faults_of_docstring(node, doc, line)
            yield from _faults_of_text(doc, line, "text")
    for line, comment in _comments(source):
        if COMMENT_OPENING.match(comment):
            yield "opening", line, comment
        yield from _faults_of_text(comment, line, "text")
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and node.lineno not in documented:
            yield from _faults_of_text(node.value, node.lineno, "message")
    for line, bound in _bound_names(tree):
        if bound.strip("_") in NAMES and (name, bound) not in NAMES_KEPT:
            yield "name", line, bound


def _faults_of_docstring(node: ast.AST, doc: str, line: int) -> Iterator[tuple[str, int, str]]:
    first = doc.splitlines()[0]
    if OPENING.match(first):
        yield "opening", line, first
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        if NO_VERB.match(first) and "property" not in decorators:
            yield "no verb", line, first


def _faults_of_text(text: str, line: int, kind: str) -> Iterator[tuple[str, int, str]]:
    for pattern in (REFERENCE, PHRASE):
        for match in pattern.finditer(text):
            start = text.rfind("\n", 0, match.start()) + 1
            yield kind, line + text.count("\n", 0, match.start()), text[start:].split("\n")[0]


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each block of comments, joined, with its first line."""
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            if block and (not alone or token.start[0] != block[-1][0] + 1):
                yield block[0][0], "\n".join(text for _, text in block)
                block = []
            block.append((token.start[0], token.string.lstrip("#:! ")))
    if block:
        yield block[0][0], "\n".join(text for _, text in block)


def _bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each name where it is bound: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.lineno, node.name


def shared_names(paths: Iterable[Path]) -> Iterator[Fault]:
    """Yield classes of one name, constants of one name, and numbers without a noun (``BATCH``)."""
    classes = defaultdict[str, list[tuple[Path, int]]](list)
    constants = defaultdict[str, list[tuple[Path, int, bool]]](list)
    for path in paths:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append((path, node.lineno))
        for name, line, number in _constants(tree):
            constants[name].append((path, line, number))
    for name, places in classes.items():
        for path, line in places if len(places) > 1 else ():
            yield Fault(room_of(path), "class", f"{path.relative_to(HERE)}:{line}", name)
    for name, found in constants.items():
        for path, line, number in found:
            if len(found) > 1 or (number and "_" not in name.strip("_")):
                yield Fault(room_of(path), "constant", f"{path.relative_to(HERE)}:{line}", name)


def _constants(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Yield name and line of each constant of a module, and whether it is a number."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = [(node.target, node.value)]
        else:
            continue
        for target, value in pairs:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs += zip(target.elts, value.elts, strict=False)
            elif isinstance(target, ast.Name) and target.id.isupper() and not _is_type_var(value):
                yield target.id, node.lineno, _is_number(value)


def _is_type_var(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).endswith("TypeVar")


def _is_number(value: ast.expr) -> bool:
    """Return whether a value consists of numbers and operators alone."""
    return all(
        isinstance(part, (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop))
        or (isinstance(part, ast.Constant) and isinstance(part.value, (int, float)))
        for part in ast.walk(value)
    )


def faults_in_page(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield kind, line and text of each fault of a page."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#"):
            yield from (("opening", number, match[0]) for match in CLAUSE.finditer(line))
        yield from _faults_of_text(line, number, "text")


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def main(*rooms: str) -> None:
    for fault in faults():
        if not rooms or fault.room in rooms:
            print(f"{fault.place}: {fault.kind}: {fault.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
