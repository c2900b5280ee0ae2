"""A property that is computed at its first access, without a lock. Classes of several packages use
it. The value is in memory alone: a death loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy_property(Generic[T]):
    """``functools.cached_property`` without the lock that it has before Python 3.12.

    That lock is one for all objects of the class. Suppose one thread holds it while it computes a
    value (``Scripts`` asks the server), and another thread forks a pool process at that moment: the
    child inherits the lock locked. Then the first job in the child that needs the value, to publish
    a message, waits for ever.

    The value is stored in the object, under the property's name, where Python finds it before the
    property. Two threads may compute it at the same time; either value may stay.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        value = vars(instance)[self._name] = self._compute(instance)
        return value
