"""What pages use of `redis-cli`, for machines without it: `redis-cli [-u URL] [-n DB] COMMAND ...`,
and `--scan --pattern PATTERN`.

Without `-u` it asks the server of the page, as the real one asks localhost.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import redis


def main(*words: str) -> None:
    url, db, left = os.environ["PAGE_SERVER"], None, list(words)
    while left and left[0].startswith("-"):
        option = left.pop(0)
        assert option in ("-u", "-n", "--scan"), f"unknown here: {option}"
        if option == "--scan":
            left[0] = "KEYS"  # in the place of --pattern
        elif option == "-u":
            url = left.pop(0)
        else:
            db = int(left.pop(0))
    more = {} if db is None else {"db": db}
    with redis.Redis.from_url(url, decode_responses=True, **more) as client:
        show(client.execute_command(*left))


def show(reply: Any) -> None:
    if isinstance(reply, dict):
        reply = list(reply.items())
    if isinstance(reply, list | tuple):
        for one in reply:
            show(one)
    else:
        print("OK" if reply is True else reply)


if __name__ == "__main__":
    main(*sys.argv[1:])
