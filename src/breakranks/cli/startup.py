"""What makes a short command start quickly. Each thing here was measured; none changes what a command does."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def relax_collector() -> None:
    """Look for garbage rarely: evidence is a million small objects that stay, and looking through them
    again and again took half the time of explaining 100,000 ranks."""
    gc.set_threshold(100_000, 50, 100)


class Arguments:
    """What argparse calls a namespace."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


class Words:
    """Reads plain command lines as argparse would, in a tenth of the time that importing argparse takes.

    Takes the same ``add_argument`` calls. Whatever is not plain (help, mistakes, abbreviations) it leaves to
    argparse: ``parse`` gives None.
    """

    def __init__(self, configure: Callable[[Any], None]) -> None:
        self._options: dict[str, dict[str, Any]] = {}
        self._places: list[tuple[str, bool]] = []  # and whether it may be left out
        self._values: dict[str, Any] = {}
        configure(self)

    def add_argument(self, *names: str, **how: Any) -> None:
        how["name"] = how.get("dest") or names[-1].lstrip("-").replace("-", "_")
        self._values[how["name"]] = how.get("default", False if how.get("action") == "store_true" else None)
        if names[0].startswith("-"):
            self._options.update(dict.fromkeys(names, how))
        else:
            self._places.append((how["name"], how.get("nargs") == "?"))

    def parse(self, words: list[str]) -> Any:
        values = dict(self._values)
        given: list[str] = []
        left = iter(words)
        for word in left:
            name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
            how = self._options.get(name)
            if how is None:
                if word.startswith("-"):
                    return None
                given.append(word)
            elif "action" in how:
                if equals or how["action"] not in ("store_true", "count"):
                    return None
                values[how["name"]] = True if how["action"] == "store_true" else values[how["name"]] + 1
            else:
                value = value if equals else next(left, "")
                if not value or value.startswith("-") or value not in how.get("choices", (value,)):
                    return None
                try:
                    values[how["name"]] = how.get("type", str)(value)
                except ValueError:
                    return None
        spare = len(given) - sum(not optional for _, optional in self._places)
        if spare < 0 or len(given) > len(self._places):
            return None
        for name, optional in self._places:
            if not optional or spare > 0:
                values[name] = given.pop(0)
                spare -= optional
        return Arguments(values)


def import_msgspec() -> None:
    """Import msgspec without two modules that we need nothing of: together a fifth of a command's time.

    It would use typing_extensions, if that is there, which brings ``inspect``. And it imports ``uuid``, which
    imports ``platform`` to ask one question.
    """
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    modules: dict[str, Any] = sys.modules
    stand_ins = {"typing_extensions": None, "platform": Platform}
    missing = [name for name in stand_ins if name not in modules]
    modules.update({name: stand_ins[name] for name in missing})
    try:
        import msgspec  # noqa: F401
    finally:
        for name in missing:
            del modules[name]


class Platform:
    """All that ``uuid`` asks of the module ``platform`` when it is imported."""

    @staticmethod
    def system() -> str:
        return os.uname().sysname
