"""Names of secrets: the page hides the values of arguments, keys and fields with these names.

``hiding`` asks it for each name. A pure rule; the answers are cached in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

#: Names to hide, or a callable that is asked for each name and returns True for a secret.
Hide = Iterable[str] | Callable[[str], bool]

#: Words in the names of secrets.
HIDE: tuple[str, ...] = (
    *("password", "passwd", "passphrase", "pass", "pwd", "secret", "credential", "creds"),
    *("auth", "authorization", "bearer", "token", "jwt", "otp", "cookie", "session", "csrf"),
    *("api_key", "access_key", "private_key", "signature", "dsn"),
    *("card", "cvc", "cvv", "iban", "ssn"),
)

#: Letters up to which a word has to be within one part of a name: ``class_name`` is no ``ssn``.
SHORT_LETTERS = 4

#: Answers that are cached: a page has the same names again and again.
NAMES_CACHED = 1024

#: Parts of names that contain a short word, and are no secrets.
NO_SECRETS = re.compile(
    r"authors?|authored|authority|authorities|passengers?|passages?|passive|passed|passes|passing"
    r"|compass|bypass|classnames?|footprints?|discard(?:s|ed)?|wildcards?|cardinal(?:s|ity)?"
)

#: Keys under which a mapping, an object or a text has the name of its value.
NAMING_KEYS = frozenset({"name", "key", "field", "header", "label", "k"})

#: A name before its value in a text: in JSON, a header, a form, XML; a name by itself under one of
#: ``NAMING_KEYS``; an option of a command; or a scheme of HTTP. Without the first condition a long
#: text would be searched from each of its characters.
NAME_BEFORE_VALUE = re.compile(
    rf"(?<![\w.-])(?:(?:{'|'.join(sorted(NAMING_KEYS))})[\"']?\s*[:=]\s*[\"']?(?P<value>[\w.-]+)(?![\w.:=-])"
    r"|(?P<name>[\w.-]+)[\\\"'\])]*\s*(?:[:=>]|%3d)|(?P<scheme>bearer)\s+(?=\S)"
    r"|--(?P<option>[\w-]+)\s+(?=\S))",
    re.IGNORECASE,
)


class HideFailed(Exception):
    """The user's callable raised: it is not known whether a name is that of a secret."""


def is_named_by(hide: Hide) -> Callable[[str], bool]:
    """Return a predicate of names: whether one is that of a secret.

    The predicate raises HideFailed if the user's callable raises. Words are compared without case,
    ``-`` and ``_``: ``api_key`` is in ``X-Api-Key`` and in ``apiKeyId``.
    """
    if callable(hide):
        return _asking(hide)
    words = {_letters(word) for word in ([hide] if isinstance(hide, str) else hide)} - {""}
    short = [word for word in words if len(word) <= SHORT_LETTERS]
    long = [word for word in words if len(word) > SHORT_LETTERS]

    @lru_cache(NAMES_CACHED)
    def is_secret(name: str) -> bool:
        letters = _letters(name)
        if letters in words or any(word in letters for word in long):
            return True
        parts = [part for part in _parts(name) if not NO_SECRETS.fullmatch(part)]
        return any(word in part for word in short for part in parts)

    return is_secret


def _asking(hide: Callable[[str], bool]) -> Callable[[str], bool]:
    def is_secret(name: str) -> bool:
        try:
            return bool(hide(name))
        except BaseException as error:  # it is the user's, and may raise anything
            raise HideFailed from error

    return is_secret


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


def _parts(name: str) -> list[str]:
    """Split a name at what is no letter, and before a capital that follows a small letter."""
    spaced = re.sub(r"(?<=[^\W_A-Z])(?=[A-Z])", " ", name)
    return [part.casefold() for part in re.findall(r"[^\W_]+", spaced)]
