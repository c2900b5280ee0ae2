"""The figures of the house: which way its imports point, and how long its files are.

    python tests/support/house.py [CHECKOUT]...

Each argument is a folder with another version, side by side with this one. Everything is read from
the source, so that imports inside functions and under TYPE_CHECKING count as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
PACKAGE = "celery_superfetch"

#: Each room, and what it may know beside the standard library; a later one may import an earlier.
ROOMS = {
    "errors": "",
    "model": "psutil",
    "signals": "celery typing_extensions",
    "store.redis": "redis",
    "store": "redis typing_extensions",  # the latter for type checkers alone, who have it
    "reaper": "redis",
    "owner.in_flight": "redis",
    "owner": "redis",
    "transport.fetch": "redis kombu",
    "transport": "redis kombu",
    "migration": "redis",
    "app": "redis kombu celery billiard typing_extensions",
    "__init__": "",  # looks names up when they are asked for
    "inspector": "redis celery",
    "worker": "redis kombu celery billiard",
    "cli": "redis kombu celery click",
    "console": "redis celery prometheus_client",
    "console.web": "redis celery starlette anyio jinja2 markupsafe uvicorn",
    "console.commands": "celery click",
}
#: What is behind the wall, by the names that it has had.
CONSOLE = ("console", "operate", "web", "probe", "cli.jobs", "cli.jobs_tables", "cli.serving")
#: It stands for all rooms, and so may name them for type checkers.
SURFACE = "__init__"

#: Lines beyond which a file is long.
LONG = 300


def modules(root: Path) -> dict[str, Path]:
    """The modules of a package by their names, without the package's own before them."""
    named = ((path.relative_to(root).with_suffix("").parts, path) for path in root.rglob("*.py"))
    return {".".join(p[:-1] if len(p) > 1 and p[-1] == "__init__" else p): f for p, f in named}


def imports(module: str, known: Mapping[str, Path], root: Path) -> Iterator[str]:
    """What a module imports: `.` before what is of its package."""
    parents = known[module].relative_to(root).parts[:-1]
    for node in ast.walk(ast.parse(known[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)
        elif isinstance(node, ast.ImportFrom):
            base = (*parents[: len(parents) - node.level + 1], *filter(None, [node.module]))
            names = (".".join((*base, alias.name)) for alias in node.names)
            yield from ("." + (n if n in known else ".".join(base) or SURFACE) for n in names)


def beside(root: Path) -> dict[str, set[str]]:
    """The modules of a folder -> those of the same folder that they import, by relative names or by
    absolute ones."""
    known = modules(root)

    def module_of(name: str) -> str:
        name = name.removeprefix(".") if name[0] == "." else name.removeprefix(f"{root.name}.")
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name

    return {m: {*map(module_of, imports(m, known, root))} - {"", m} for m in known}


def is_console(module: str) -> bool:
    """Whether it is behind the wall."""
    return any(f"{module}.".startswith(f"{name}.") for name in CONSOLE)


def nouns(paths: Iterable[Path]) -> set[str]:
    """What has to be known by name: modules and classes; one that is called as its module once."""
    paths = [*paths]
    trees = (ast.walk(ast.parse(path.read_text())) for path in paths)
    classes = {node.name for tree in trees for node in tree if isinstance(node, ast.ClassDef)}
    return {name.replace("_", "").lower() for name in classes | {path.stem for path in paths}}


def room_of(module: str) -> str:
    """The room that a module is in; behind the wall there were others."""
    fitting = [room for room in ROOMS if f"{module}.".startswith(f"{room}.")]
    return max(fitting, key=len, default="console")


def goes_up(room: str, other: str) -> bool:
    """Whether it leaves the order of the rooms to import from one of them in another."""
    order = list(ROOMS)
    return room != SURFACE and order.index(other) > order.index(room)


def stand(graph: Mapping[str, set[str]]) -> tuple[set[frozenset[str]], int]:
    """The circles of imports, and how many floors stand above each other; a circle is one."""
    reach = {name: others & graph.keys() - {name} for name, others in graph.items()}
    for between in graph:
        for others in reach.values():
            others |= reach[between] if between in others else set()

    @cache
    def floor(name: str) -> int:
        return 1 + max((floor(n) for n in reach[name] if name not in reach[n]), default=0)

    circles = {frozenset(n for n in reach[m] if m in reach[n]) for m in graph if m in reach[m]}
    return circles, max(map(floor, graph))


def figures(checkout: Path) -> dict[str, object]:
    """What is measured, by its name."""
    root = checkout / PACKAGE
    known = modules(root)
    rooms = {m: room_of(m) for m in known}
    graph = {m: {n[1:] for n in imports(m, known, root) if n[0] == "."} - {m} for m in known}
    upward = [(m, n) for m, names in graph.items() for n in names if goes_up(rooms[m], rooms[n])]
    del graph[SURFACE]

    circles, height = stand(graph)
    folders = {module: room.partition(".")[0] for module, room in rooms.items()}
    above: dict[str, set[str]] = {folder: set() for folder in folders.values()}
    for module, names in graph.items():
        above[folders[module]] |= {folders[name] for name in names}
    sizes = {module: lines(path) for module, path in known.items()}
    return {
        "files": len(known),
        "floors of modules": height,
        "floors of rooms": stand(above)[1],
        "circles": len(circles),
        "upward imports": len(upward),
        f"files over {LONG} lines": sum(size > LONG for size in sizes.values()),
        "lines of the longest": max(sizes.values()),
        "lines of the package": sum(sizes.values()),
        "lines of the core": sum(size for m, size in sizes.items() if not is_console(m)),
        "lines of the console": sum(size for m, size in sizes.items() if is_console(m)),
        "nouns of the core": len(nouns(path for m, path in known.items() if not is_console(m))),
        "lines of Lua": sum(map(lines, root.rglob("*.lua"))),
        "lines of tests": sum(map(lines, (checkout / "tests").rglob("*.py"))),
        **{f"circle {n}": names for n, names in enumerate(sorted(map(_listed, circles)), 1)},
        **{f"upward {n}": " -> ".join(pair) for n, pair in enumerate(sorted(upward), 1)},
    }


def _listed(names: Iterable[str]) -> str:
    return " ".join(sorted(names))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def main(*others: str) -> None:
    columns = [figures(Path(checkout)) for checkout in (*others, HERE)]
    for name in dict.fromkeys(name for column in columns for name in column):
        print(f"{name:24}", *(f"{column.get(name, '')!s:>9}" for column in columns), sep="  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
