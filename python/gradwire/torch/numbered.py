"""Things with numbers, by which a checkpoint finds them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

Owner = TypeVar("Owner")
Thing = TypeVar("Thing")
State = TypeVar("State")


class Numbered(Generic[Owner, Thing, State]):
    """One thing per owner, while the owner lives, numbered in the order of their making or, if they
    are held at first, of their first use.

    A process that starts again does all in the same order, so numbers tell which state is whose.
    """

    def __init__(
        self, save: Callable[[Thing], State], load: Callable[[Thing, State], None]
    ) -> None:
        self._save_one = save
        self._load_one = load
        self._things: WeakKeyDictionary[Owner, tuple[int | None, Thing]] = WeakKeyDictionary()
        self._next = 0
        self._saved: dict[int, State] = {}

    def add(self, owner: Owner, make: Callable[[int], Thing]) -> Thing:
        """Makes what the owner has, from its number, with the state that was loaded for it."""
        thing = self.hold(owner, make(self._next))
        self.number(owner)
        return thing

    def hold(self, owner: Owner, thing: Thing) -> Thing:
        """Without a number, which it may never get, and which others do not wait for."""
        self._things[owner] = None, thing
        return thing

    def number(self, owner: Owner) -> int:
        """That of what the owner has, which gets one now, unless it has, and with it its state."""
        number, thing = self._things[owner]
        if number is None:
            number = self._next
            self._things[owner] = number, thing
            self._next += 1
            self._load_saved()
        return number

    def get(self, owner: Owner) -> Thing | None:
        return self._things[owner][1] if owner in self._things else None

    def were_numbered(self) -> bool:
        """Whether any ever was."""
        return self._next > 0

    def remove(self, owner: Owner) -> None:
        del self._things[owner]

    def __iter__(self) -> Iterator[Thing]:
        return iter([thing for _, thing in self._things.values()])

    def save(self) -> dict[int, State]:
        return {
            number: self._save_one(thing)
            for number, thing in self._things.values()
            if number is not None
        }

    def load(self, saved: dict[int, State]) -> None:
        """For the things that there are, and for those that will be made."""
        self._saved = dict(saved)
        self._load_saved()

    def _load_saved(self) -> None:
        for number, thing in self._things.values():
            if number in self._saved:
                self._load_one(thing, self._saved.pop(number))
