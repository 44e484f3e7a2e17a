"""Typed values from plain ones: a function for each type, made when it is first wanted."""

from __future__ import annotations

import binascii
import types
import typing
from collections.abc import Callable
from typing import Any

from ._errors import ValidationError
from ._struct import NODEFAULT, StructMeta, hints_of

JSON, MSGPACK = "json", "msgpack"
Converter = Callable[[Any], Any]
_known: dict[tuple[Any, str], Converter] = {}
_NAMES = {dict: "object", list: "array", tuple: "array", type(None): "null"}
_ARRAYS: dict[Any, Callable[[Any], Any]] = {list: list, tuple: tuple, set: set, frozenset: frozenset}


def convert(value: Any, type: Any, *, strict: bool = True, of: str = MSGPACK) -> Any:
    if not strict:
        raise NotImplementedError("the stand-in for msgspec is always strict")
    return _converter(type, of)(value)


def _converter(wanted: Any, of: str) -> Converter:
    key = (wanted, of)
    found = _known.get(key)
    if found is None:
        # A type may be below itself: until it is made, who asks for it gets a way to it.
        _known[key] = lambda value: _known[key](value)
        try:
            found = _known[key] = _make(wanted, of)
        except BaseException:
            del _known[key]
            raise
    return found


def _make(wanted: Any, of: str) -> Converter:
    if wanted is Any or wanted is object:
        return lambda value: value
    if wanted is None or wanted is type(None):
        return _null
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, of)
    if isinstance(wanted, StructMeta):
        return _array_struct(wanted, of) if wanted.__struct_options__["array_like"] else _map_struct(wanted, of)
    if isinstance(wanted, type) and issubclass(wanted, tuple) and hasattr(wanted, "_fields"):
        return _named_tuple(wanted, of)
    kind = origin or wanted
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        return _fixed_tuple(arguments, of)
    if kind in _ARRAYS:
        return _array(_ARRAYS[kind], arguments[0] if arguments else Any, of)
    if kind is dict:
        return _map(arguments or (Any, Any), of)
    if wanted in _SCALARS:
        return _bytes_in_text if wanted is bytes and of == JSON else _SCALARS[wanted]
    raise TypeError(f"the stand-in for msgspec does not know the type {wanted!r}")


def _wrong(expected: str, value: Any) -> ValidationError:
    got = "None" if value is None else _NAMES.get(type(value), type(value).__name__)
    return ValidationError(f"Expected `{expected}`, got `{got}`")


def _null(value: Any) -> None:
    if value is not None:
        raise _wrong("null", value)


def _scalar(kind: type) -> Converter:
    def exactly(value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(kind.__name__, value)
        return value

    return exactly


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise _wrong("float", value)


def _bytes_in_text(value: Any) -> bytes:
    if type(value) is not str:
        raise _wrong("bytes", value)
    try:
        return binascii.a2b_base64(value)
    except binascii.Error:
        raise ValidationError("Invalid base64 encoded string") from None


_SCALARS: dict[Any, Converter] = {kind: _scalar(kind) for kind in (str, int, bool, bytes)} | {float: _float}


def _at(error: ValidationError, step: str) -> ValidationError:
    error.path = step + error.path
    return error


def _items(value: Any, converters: typing.Iterable[Converter]) -> list[Any]:
    made = []
    for at, (one, below) in enumerate(zip(value, converters, strict=False)):
        try:
            made.append(below(one))
        except ValidationError as error:
            raise _at(error, f"[{at}]") from None
    return made


def _array(kind: Callable[[Any], Any], item: Any, of: str) -> Converter:
    below = _converter(item, of)

    def array(value: Any) -> Any:
        if type(value) not in (list, tuple):
            raise _wrong("array", value)
        return kind(_items(value, (below for _ in value)))

    return array


def _fixed_tuple(arguments: tuple[Any, ...], of: str) -> Converter:
    below = [_converter(one, of) for one in arguments if one != ()]

    def fixed(value: Any) -> Any:
        if type(value) not in (list, tuple):
            raise _wrong("array", value)
        if len(value) != len(below):
            raise ValidationError(f"Expected `array` of length {len(below)}, got {len(value)}")
        return tuple(_items(value, below))

    return fixed


def _named_tuple(wanted: Any, of: str) -> Converter:
    hints = typing.get_type_hints(wanted)
    below = [_converter(hints.get(name, Any), of) for name in wanted._fields]
    least = len(below) - len(wanted._field_defaults)

    def named(value: Any) -> Any:
        if type(value) not in (list, tuple):
            raise _wrong("array", value)
        if not least <= len(value) <= len(below):
            length = f"{least} to {len(below)}" if least < len(below) else str(least)
            raise ValidationError(f"Expected `array` of length {length}, got {len(value)}")
        return wanted(*_items(value, below))

    return named


def _map(arguments: tuple[Any, ...], of: str) -> Converter:
    of_key, of_value = (_converter(one, of) for one in arguments)

    def mapped(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong("object", value)
        made = {}
        for key, one in value.items():
            try:
                key = of_key(key)
            except ValidationError as error:
                raise ValidationError(f"{error.what} - at `key` in `$`") from None
            try:
                made[key] = of_value(one)
            except ValidationError as error:
                raise _at(error, "[...]") from None
        return made

    return mapped


def _finished(wanted: Any, values: dict[str, Any]) -> Any:
    try:
        return wanted(**values)
    except (ValueError, TypeError) as error:  # of its __post_init__
        raise ValidationError(str(error)) from error


def _map_struct(wanted: Any, of: str) -> Converter:
    hints = hints_of(wanted)
    below = {name: _converter(hints[name], of) for name in wanted.__struct_fields__}
    required = [name for name, how in wanted.__struct_by_name__.items() if _is_required(how)]
    tag = wanted.__struct_tag__

    def mapped(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong("object", value)
        values = {}
        for key, one in value.items():
            if type(key) is not str:
                raise ValidationError(f"{_wrong('str', key).what} - at `key` in `$`")
            if tag is not None and key == tag[0]:
                if one != tag[1] or type(one) is not type(tag[1]):
                    raise ValidationError(f"Invalid value {one!r}", f".{key}")
            elif key in below:
                try:
                    values[key] = below[key](one)
                except ValidationError as error:
                    raise _at(error, f".{key}") from None
        for name in required:
            if name not in values:
                raise ValidationError(f"Object missing required field `{name}`")
        return _finished(wanted, values)

    return mapped


def _array_struct(wanted: Any, of: str) -> Converter:
    hints = hints_of(wanted)
    below = [_converter(hints[name], of) for name in wanted.__struct_fields__]
    tag = wanted.__struct_tag__
    skipped = 0 if tag is None else 1
    least = skipped + max((at + 1 for at, how in enumerate(wanted.__struct_by_name__.values()) if _is_required(how)),
                          default=0)  # fmt: skip

    def array(value: Any) -> Any:
        if type(value) not in (list, tuple):
            raise _wrong("array", value)
        if len(value) < least:
            raise ValidationError(f"Expected `array` of at least length {least}, got {len(value)}")
        if tag is not None and value[0] != tag[1]:
            raise ValidationError(f"Invalid value {value[0]!r}", "[0]")
        every: list[Converter] = [lambda one: one] * skipped + below
        made = _items(value, every)[skipped:]
        return _finished(wanted, dict(zip(wanted.__struct_fields__, made, strict=False)))

    return array


def _is_required(how: Any) -> bool:
    return how.default is NODEFAULT and how.default_factory is NODEFAULT


def _union(arguments: tuple[Any, ...], of: str) -> Converter:
    tagged = [one for one in arguments if isinstance(one, StructMeta)]
    others = [one for one in arguments if not isinstance(one, StructMeta)]
    choose = _tagged(tagged, of) if len(tagged) > 1 else _converter(tagged[0], of) if tagged else None
    form: tuple[type, ...] = ()
    if tagged:
        form = (list, tuple) if tagged[0].__struct_options__["array_like"] else (dict,)
    by_kind: dict[Any, Converter] = {}
    for one in others:
        kind = typing.get_origin(one) or one
        kind = type(None) if kind is None else kind
        if kind in _ARRAYS or (isinstance(kind, type) and issubclass(kind, tuple)):
            by_kind |= {list: _converter(one, of), tuple: _converter(one, of)}
        else:
            by_kind[kind] = _converter(one, of)
    if float in by_kind:
        by_kind.setdefault(int, by_kind[float])
    if bytes in by_kind and of == JSON:
        by_kind.setdefault(str, by_kind[bytes])
    names = " | ".join(_name(one) for one in arguments)
    anything = by_kind.get(Any, by_kind.get(object))

    def one_of(value: Any) -> Any:
        kind = type(value)
        if choose is not None and kind in form:
            return choose(value)
        found = by_kind.get(kind, anything)
        if found is None:
            raise _wrong(names, value)
        return found(value)

    return one_of


def _name(wanted: Any) -> str:
    if isinstance(wanted, StructMeta):
        return "array" if wanted.__struct_options__["array_like"] else "object"
    kind = typing.get_origin(wanted) or wanted
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def _tagged(wanted: list[Any], of: str) -> Converter:
    if any(one.__struct_tag__ is None for one in wanted):
        raise TypeError("Type unions may not contain more than one Struct type unless all have a tag")
    if (
        len({one.__struct_options__["array_like"] for one in wanted}) > 1
        or len({one.__struct_tag__[0] for one in wanted}) > 1
    ):
        raise TypeError("Type unions may not contain Struct types of different forms")
    field = wanted[0].__struct_tag__[0]
    by_tag = {one.__struct_tag__[1]: _converter(one, of) for one in wanted}
    is_array = wanted[0].__struct_options__["array_like"]

    def tagged(value: Any) -> Any:
        if is_array:
            if not value:
                raise ValidationError("Expected `array` of at least length 1, got 0")
            tag, step = value[0], "[0]"
        else:
            if field not in value:
                raise ValidationError(f"Object missing required field `{field}`")
            tag, step = value[field], f".{field}"
        if not isinstance(tag, (str, int)):
            raise _at(_wrong("str", tag), step)
        if tag not in by_tag:
            raise ValidationError(f"Invalid value {tag!r}", step)
        return by_tag[tag](value)

    return tagged
