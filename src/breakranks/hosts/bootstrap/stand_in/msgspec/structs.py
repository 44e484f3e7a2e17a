from __future__ import annotations

from typing import Any, NamedTuple

from ._struct import NODEFAULT, Struct, hints_of


class FieldInfo(NamedTuple):
    name: str
    encode_name: str
    type: Any
    default: Any = NODEFAULT
    default_factory: Any = NODEFAULT

    @property
    def required(self) -> bool:
        return self.default is NODEFAULT and self.default_factory is NODEFAULT


def fields(type_or_instance: Any) -> tuple[FieldInfo, ...]:
    cls: Any = type_or_instance if isinstance(type_or_instance, type) else type(type_or_instance)
    hints = hints_of(cls)
    return tuple(
        FieldInfo(name, name, hints[name], how.default, how.default_factory)
        for name, how in cls.__struct_by_name__.items()
    )


def replace(struct: Any, /, **changes: Any) -> Any:
    if not isinstance(struct, Struct):
        raise TypeError("`struct` must be a `msgspec.Struct`")
    values = asdict(struct)
    for name in changes:
        if name not in values:
            raise TypeError(f"`{type(struct).__name__}` has no field {name!r}")
    return type(struct)(**{**values, **changes})


def asdict(struct: Any) -> dict[str, Any]:
    return dict(zip(type(struct).__struct_fields__, struct.__struct_values__(), strict=True))


def astuple(struct: Any) -> tuple[Any, ...]:
    values: tuple[Any, ...] = struct.__struct_values__()
    return values


def force_setattr(struct: Any, name: str, value: Any) -> None:
    object.__setattr__(struct, name, value)
