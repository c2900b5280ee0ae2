"""Counts what this process sends: the server counts what scripts call as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compare import lines
from redis.connection import AbstractConnection


def watch_sent(note: Callable[[int, int], None]) -> Callable[[], None]:
    """Call ``note`` with the number of commands, and of sends (a pipeline is one), of each kind.

    Returns:
        what ends it.
    """
    send, pack = AbstractConnection.send_command, AbstractConnection.pack_commands
    packed = AbstractConnection.send_packed_command
    ours = {line: line.packed for line in lines()}

    def noted_send(connection: Any, *args: Any, **kwargs: Any) -> Any:
        note(1, 0)
        return send(connection, *args, **kwargs)

    def noted_pack(connection: Any, commands: Any) -> Any:
        commands = list(commands)
        note(len(commands), 0)
        return pack(connection, commands)

    def noted_packed(connection: Any, *args: Any, **kwargs: Any) -> Any:
        note(0, 1)
        return packed(connection, *args, **kwargs)

    def noted_ours(line: Any, calls: Any, wait: bool) -> Any:
        note(len(calls), 0)
        return ours[type(line)](line, calls, wait)

    def put(of_lines: Any, *methods: Any) -> None:
        AbstractConnection.send_command = methods[0]  # type: ignore[method-assign]
        AbstractConnection.pack_commands = methods[1]  # type: ignore[method-assign]
        AbstractConnection.send_packed_command = methods[2]  # type: ignore[method-assign]
        for line in ours:
            line.packed = of_lines[line]

    put(dict.fromkeys(ours, noted_ours), noted_send, noted_pack, noted_packed)
    return lambda: put(ours, send, pack, packed)
