"""What pages use of `redis-cli`, for machines without it: `redis-cli [-u URL] [-n DB] COMMAND ...`.

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
        assert option in ("-u", "-n"), f"unknown here: {option}"
        url, db = (left.pop(0), db) if option == "-u" else (url, int(left.pop(0)))
    more = {} if db is None else {"db": db}
    with redis.Redis.from_url(url, decode_responses=True, **more) as client:
        show(client.execute_command(*left))


def show(reply: Any) -> None:
    for line in reply if isinstance(reply, list) else [reply]:
        print("\n".join(line) if isinstance(line, list) else "OK" if line is True else line)


if __name__ == "__main__":
    main(*sys.argv[1:])
