"""Counts the commands that this process sends: the server's counts include those of scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compare import senders
from redis.connection import AbstractConnection


def watch_sent(note: Callable[[int, int], None]) -> Callable[[], None]:
    """Call ``note`` with the number of commands, and of sends (a pipeline is one), of each kind.

    Returns:
        a function that ends it.
    """
    send, pack = AbstractConnection.send_command, AbstractConnection.pack_commands
    packed = AbstractConnection.send_packed_command
    names = senders()
    ours = {sender: getattr(sender, name) for sender, name in names.items()}

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

    def noted_ours(sender: Any, commands: Any, wait: bool) -> Any:
        note(len(commands), 0)
        return ours[type(sender)](sender, commands, wait)

    def put(of_senders: Any, *methods: Any) -> None:
        AbstractConnection.send_command = methods[0]  # type: ignore[method-assign]
        AbstractConnection.pack_commands = methods[1]  # type: ignore[method-assign]
        AbstractConnection.send_packed_command = methods[2]  # type: ignore[method-assign]
        for sender, name in names.items():
            setattr(sender, name, of_senders[sender])

    put(dict.fromkeys(ours, noted_ours), noted_send, noted_pack, noted_packed)
    return lambda: put(ours, send, pack, packed)
