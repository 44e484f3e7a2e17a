"""``Struct``: a class whose fields are slots. Its ``__init__`` is written out for each class, as dataclasses do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

_OPTIONS = {"frozen", "kw_only", "array_like", "gc", "tag", "tag_field", "eq", "weakref"}
_INHERITED = {"frozen": False, "array_like": False, "tag": None, "tag_field": None, "eq": True}


class _NoDefault:
    def __repr__(self) -> str:
        return "NODEFAULT"


NODEFAULT: Any = _NoDefault()


class Field:
    def __init__(self, default: Any, default_factory: Any) -> None:
        self.default = default
        self.default_factory = default_factory


def field(*, default: Any = NODEFAULT, default_factory: Any = NODEFAULT) -> Any:
    if default is not NODEFAULT and default_factory is not NODEFAULT:
        raise TypeError("Cannot set both `default` and `default_factory`")
    return _as_field(default, "") if default_factory is NODEFAULT else Field(NODEFAULT, default_factory)


def _as_field(default: Any, name: str) -> Field:
    """An empty list as default is a new one for each; one that has something in it would be shared."""
    if isinstance(default, Field):
        return default
    if type(default) in (list, dict, set, bytearray):
        if default:
            raise TypeError(
                f"default value {default!r} of field {name!r} is mutable and not empty: use default_factory"
            )
        return Field(NODEFAULT, type(default))
    return Field(default, NODEFAULT)


class StructMeta(type):
    if TYPE_CHECKING:  # a class without fields would be taken to have these
        __struct_fields__: tuple[str, ...]
        __struct_by_name__: dict[str, Field]
        __struct_options__: dict[str, Any]
        __struct_tag__: tuple[str, Any] | None
        __match_args__: tuple[str, ...]

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> StructMeta:
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise TypeError(f"the stand-in for msgspec does not know the option {sorted(unknown)[0]!r} of class {name}")
        own = _own_fields(namespace)
        slots = [one for one in own if not any(one in getattr(base, "__struct_fields__", ()) for base in bases)]
        namespace["__slots__"] = (*slots, "__weakref__") if options.get("weakref") else tuple(slots)
        made = super().__new__(mcs, name, bases, namespace)
        made._adopt(own, options)
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, namespace)

    def _adopt(cls, own: dict[str, Field], options: dict[str, Any]) -> None:
        settled = dict(_INHERITED)
        placed: dict[str, Field] = {}
        named: dict[str, Field] = {}
        for base in reversed(cls.__mro__[1:]):
            if isinstance(base, StructMeta):
                settled.update(base.__struct_options__)
                for one, how in base.__struct_by_name__.items():
                    (placed if one in base.__match_args__ else named)[one] = how
        settled.update({key: value for key, value in options.items() if key in _INHERITED and value is not None})
        for one, how in own.items():
            placed.pop(one, None)
            named.pop(one, None)
            (named if options.get("kw_only") else placed)[one] = how
        cls.__struct_options__ = settled
        cls.__struct_by_name__ = {**placed, **named}
        cls.__struct_fields__ = (*placed, *named)
        type.__setattr__(cls, "__match_args__", tuple(placed))
        cls.__struct_tag__ = _tag(cls.__name__, settled)
        _write_methods(cls, placed, named, settled)


def _own_fields(namespace: dict[str, Any]) -> dict[str, Field]:
    own = {}
    for name, hint in namespace.get("__annotations__", {}).items():
        if str(hint).replace("typing.", "").startswith("ClassVar"):
            continue
        own[name] = _as_field(namespace.pop(name), name) if name in namespace else Field(NODEFAULT, NODEFAULT)
    return own


def _tag(name: str, options: dict[str, Any]) -> tuple[str, Any] | None:
    tag = options["tag"]
    if tag is False or (tag is None and options["tag_field"] is None):
        return None
    if tag is None or tag is True:
        tag = name
    if not isinstance(tag, (str, int)):
        raise TypeError("the stand-in for msgspec knows tags that are texts or numbers")
    return options["tag_field"] or "type", tag


def _write_methods(cls: StructMeta, placed: dict[str, Field], named: dict[str, Field], options: dict[str, Any]) -> None:
    scope: dict[str, Any] = {"N": NODEFAULT, "put": object.__setattr__}
    words, lines = ["self"], []
    optional = False
    for one, how in {**placed, **named}.items():
        if one in named and "*" not in words:
            words.append("*")
            optional = False
        value = one
        if how.default is not NODEFAULT:
            scope[f"d_{one}"] = how.default
            words.append(f"{one}=d_{one}")
        elif how.default_factory is not NODEFAULT:
            scope[f"d_{one}"] = how.default_factory
            words.append(f"{one}=N")
            value = f"d_{one}() if {one} is N else {one}"
        elif optional and one not in named:
            raise TypeError(f"Required field {one!r} cannot follow optional fields")
        else:
            words.append(one)
        optional = optional or words[-1] != one
        lines.append(f"put(self, {one!r}, {value})" if options["frozen"] else f"self.{one} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    both = " and ".join(f"self.{one} == other.{one}" for one in (*placed, *named)) or "True"
    whole = "".join(f"self.{one}, " for one in (*placed, *named))
    source = f"""
def __init__({", ".join(words)}):
    {"; ".join(lines) or "pass"}
def __eq__(self, other):
    return {both} if type(other) is type(self) else NotImplemented
def __hash__(self):
    return hash(({whole}))
def _values(self):
    return ({whole})
"""
    exec(source, scope)
    for name in ("__init__", "__eq__", "__hash__"):
        scope[name].__qualname__ = f"{cls.__qualname__}.{name}"
    type.__setattr__(cls, "__init__", scope["__init__"])
    type.__setattr__(cls, "__struct_values__", scope["_values"])
    if options["eq"] and "__eq__" not in cls.__dict__:
        type.__setattr__(cls, "__eq__", scope["__eq__"])
        if cls.__dict__.get("__hash__") is None:
            type.__setattr__(cls, "__hash__", scope["__hash__"] if options["frozen"] else None)
    if options["frozen"]:
        type.__setattr__(cls, "__setattr__", _refuse)
        type.__setattr__(cls, "__delattr__", _refuse)


def _refuse(self: Any, *_: Any) -> None:
    raise AttributeError(f"immutable type: {type(self).__name__!r}")


class Struct(metaclass=StructMeta):
    __slots__ = ()

    def __struct_values__(self) -> tuple[Any, ...]:
        return ()

    def __repr__(self) -> str:
        pairs = zip(type(self).__struct_fields__, self.__struct_values__(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    def __copy__(self) -> Any:
        return _rebuilt(type(self), self.__struct_values__())

    def __replace__(self, **changes: Any) -> Any:
        from .structs import replace

        return replace(self, **changes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.__struct_values__())


def _rebuilt(cls: type, values: tuple[Any, ...]) -> Any:
    """As it was, without ``__post_init__``."""
    made: Any = object.__new__(cls)
    for name, value in zip(getattr(cls, "__struct_fields__", ()), values, strict=True):
        object.__setattr__(made, name, value)
    return made


def hints_of(cls: type) -> dict[str, Any]:
    """The types of its fields. Not before they are wanted: a class may name one that comes after it."""
    import typing

    scope = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    return typing.get_type_hints(cls, {**scope}, {cls.__name__: cls})
