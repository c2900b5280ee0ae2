"""Text of objects that user code made: exceptions, arguments, results, headers, names, receivers of
signals.

Their ``str``, ``repr``, class and attributes are user code as well, and may raise anything, exit,
or return what is no text. All code that logs, stores or shows such an object calls these functions:
they never raise. Pure functions, apart from the user code that they call: a death loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from traceback import format_exception
from types import TracebackType
from typing import Any

TEXT_MAX_CHARS = 500

_name_of_class: Callable[[type], str] = type.__dict__["__name__"].__get__
#: Makes a plain ``str`` of an object of a subclass, without calling methods of that.
_plain_text: Callable[[str], str] = str.__str__


def describe(value: object, max_chars: int = TEXT_MAX_CHARS) -> str:
    """Return ``repr(value)`` as one printable line of at most ``max_chars`` characters."""
    return escaped(_text(repr, value), max_chars)


def message_of(value: object, max_chars: int = TEXT_MAX_CHARS) -> str:
    """Return ``str(value)`` as one printable line of at most ``max_chars``; ``repr(value)`` where
    that is empty, as for an exception without arguments."""
    return one_line(_text(str, value), max_chars) or describe(value, max_chars)


def class_name(value: object) -> str:
    """Return the name of a value's class, also if its metaclass defines another ``__name__``."""
    return _plain_text(_name_of_class(type(value)))


def kind_of(error: BaseException) -> str:
    """Return what an error is and where it was raised: its class, the class of its cause, and the
    line of code. It is stored as the reason why a job was dead-lettered or put back.

    The error's text is left out: it may quote a job's arguments, and a reason is sent to callers,
    found by a search, and shown to people from whom the arguments are hidden.
    """
    cause = _of_exceptions("__cause__", error)
    if cause is None and not _of_exceptions("__suppress_context__", error):
        cause = _of_exceptions("__context__", error)
    source = f" from {class_name(cause)}" if cause is not None else ""
    traceback: TracebackType | None = _of_exceptions("__traceback__", error)
    if traceback is None:
        return class_name(error) + source
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = "/".join(PurePath(traceback.tb_frame.f_code.co_filename).parts[-2:])
    place = f" ({file}, line {traceback.tb_lineno})"
    return escaped(class_name(error) + source + place)


def _of_exceptions(name: str, error: BaseException) -> Any:
    """Return an attribute that ``BaseException`` defines, also if the error's class overrides
    it."""
    return BaseException.__dict__[name].__get__(error)


def loggable(error: BaseException) -> BaseException | None:
    """Return ``error`` if its traceback can be formatted, for ``exc_info`` of a log; else None."""
    try:
        # This reads all of it that is user code: its text, notes, causes, and those of the
        # exceptions in a group.
        format_exception(type(error), error, None)
    except BaseException:
        return None
    return error


def one_line(text: str, max_chars: int = TEXT_MAX_CHARS) -> str:
    """Return ``text`` as one printable line of at most ``max_chars``, with each run of white space
    as one space."""
    head = text[: 4 * max_chars]  # splitting a text of megabytes would take long
    ellipsis = "..." if len(text) > len(head) else ""
    return escaped(" ".join(head.split()) + ellipsis, max_chars)


def escaped(text: str, max_chars: int = TEXT_MAX_CHARS) -> str:
    """Return ``text`` cut to ``max_chars``, with escapes for characters that a terminal or a log
    would interpret."""
    head = text[: max_chars + 1]
    if not head.isprintable():
        head = "".join(map(_escape, head))  # a NUL becomes four characters, a lone surrogate six
    return head if len(head) <= max_chars else f"{head[: max_chars - 3]}..."


def _escape(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


def _text(how: Callable[[object], str], value: object) -> str:
    """Return ``how(value)`` as a plain ``str``, or a text that says that it raised."""
    try:
        return _plain_text(how(value))
    except BaseException as error:  # also a SystemExit: printing a value must not end the process
        return f"<{class_name(value)}, whose {how.__name__} raises {class_name(error)}>"
