"""Keys, commands and scripts are named in the store alone; read from the source of all others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import redis

from support.house import HERE, PACKAGE, modules

MODULES = modules(HERE / PACKAGE)

COMMANDS = {name for name in dir(redis.Redis) if not name.startswith("_")} - {"close"}
WORDS = {name.partition("_")[0].upper() for name in COMMANDS} - {"DEBUG"}  # a level, in logs
#: What is called so stands for a redis-py client or pipeline.
SPEAKERS = {"client", "pipe", "pipeline", "redis"}
#: By whomever it is asked.
ALWAYS = {"execute_command", "pipeline", "read_response", "send_command", "send_packed_command"}
#: Of a ``Structure``, and classes that spell what only its methods should.
INNER = {"keys", "scripts"}
SPELLERS = {"Call", "Command", "Keys", "Pipeline", "Scripts", "packed"}
KEY = re.compile(r"(?<!celery_)superfetch:")

EXCEPTIONS = {
    # The result backend's client, and Celery's keys.
    "app.chords": {".lrange", ".zrange"},
    "app.dead_results": {".delete"},
    # Stock kombu's hash of unacked messages, and its index: the package's own keys have no part in
    # it, and one of its scripts moves the jobs.
    "migration.stock_unacked": {
        *{".client_list", ".hkeys", ".hlen", ".hmget", ".keys", ".scripts", ".zmscore", ".zrange"},
    },
    # It sends calls, which the store has made, together.
    "owner.in_flight.pending": {"Call", "Command", "Pipeline", ".scripts"},
    "console.web.hiding": {".keys"},  # of a dictionary in a job's arguments
}


def spelled(source: str) -> Iterator[str]:
    """What a module names that is for the store to name."""
    tree = ast.parse(source)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and "store" in (node.module or ""):
            yield from SPELLERS & {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rpartition(".")[2]
            command = node.attr in COMMANDS and owner in SPEAKERS
            inner = node.attr in INNER and id(node) not in called and owner != "report"
            if command or inner or node.attr in ALWAYS:
                yield f".{node.attr}"
        elif isinstance(node, ast.Constant) and id(node) not in docs:
            yield from {str(node.value)} & WORDS or KEY.findall(str(node.value))


@pytest.mark.parametrize(
    "module", sorted(name for name in MODULES if not f"{name}.".startswith("store."))
)
def test_no_other_room_names_a_key_a_command_or_a_script(module):
    assert set(spelled(MODULES[module].read_text())) == EXCEPTIONS.get(module, set())


@pytest.mark.parametrize(
    "source",
    [
        "self.client.hgetall(name)",
        "next(map(client.rpop, names))",
        "with database.client.pipeline() as pipe: pass",
        "pipe.llen(name)",
        "connection.send_command(*command)",
        "lists.scripts.run_all(calls)",
        "keys = database.keys",
        "read = connection.send('BLMOVE')",
        "from ..store.redis.scripts import Call",
        "name = f'{prefix}superfetch:lock:{scope}'",
    ],
)
def test_what_another_room_names_is_seen(source):
    assert list(spelled(source))
