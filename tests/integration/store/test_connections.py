"""Connections of this package on a real server."""

from __future__ import annotations

import threading

from redis import Connection
from redis.exceptions import ConnectionError

from celery_superfetch.store.redis.connections import following
from support.waiting import eventually


def closed_while_read(kind: type[Connection], server) -> list[Exception]:
    """What a reader gets whose connection another thread closes."""
    connection = kind(host="127.0.0.1", port=server.port, protocol=3)
    connection.connect()
    connection.send_command("BLPOP", "nothing", 0)
    errors: list[Exception] = []

    def read() -> None:
        try:
            connection.read_response()
        except Exception as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    client = server.client()
    eventually(lambda: any(each["cmd"] == "blpop" for each in client.client_list()))
    connection.disconnect()
    reader.join(10)
    return errors


def test_a_connection_that_is_closed_while_it_is_read_is_a_lost_one(server):
    [error] = closed_while_read(following(Connection), server)
    assert isinstance(error, ConnectionError)


def test_the_control_redis_py_raises_what_nobody_takes_for_a_lost_connection(server):
    [error] = closed_while_read(Connection, server)
    assert not isinstance(error, (ConnectionError, OSError))
    assert isinstance(error, (ValueError, AttributeError))
