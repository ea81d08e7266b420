"""Typed bodies: codecs, which turn values into bytes and back, and `Body`, which reads the type that a handler wants.

pydantic and msgspec are imported with the first type or value of theirs, so txlayer needs neither.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NewType, Union, get_args, get_origin
from uuid import UUID

from txlayer.errors import ConfigError, UsageError

Serializer = Callable[[Any, Any], bytes | None]
"""Makes the bytes of a value: any of confluent-kafka, or a function (value, `SerializationContext`)."""

Deserializer = Callable[[bytes | None, Any], Any]
"""Makes a message's key or value from its bytes: any of confluent-kafka, or a function (bytes, `SerializedField`).

If it raises, the message becomes a dead letter, unless the same bytes may be readable later (`is_passing`).
"""

Reader = Callable[[Any], Any]  # makes a value of one type from plain values of JSON; raises `_UnfitError` if it cannot

_PYDANTIC, _MSGSPEC = "__pydantic_validator__", "__struct_fields__"  # what only classes of pydantic and of msgspec have


@dataclass(frozen=True, slots=True)
class Codec:
    """Turns values into bytes and back. Producers use `serializer`, consumers `deserializer`; None: bytes stay bytes.

    Both may be confluent-kafka's, such as `Codec(JSONSerializer(schema, registry), JSONDeserializer(None, registry))`.
    """

    serializer: Serializer | None = None
    deserializer: Deserializer | None = None


def write_json(value: Any, _context: Any = None) -> bytes | None:
    """UTF-8 JSON of a dataclass, a model of pydantic or msgspec, or plain values; None stays null.

    In dataclasses, times, `Decimal` and `UUID` become text, an `Enum` its value, and a set a list.

    Raises:
        UsageError: no JSON can be made of the value. Nothing was sent.
    """
    if value is None:
        return None
    try:
        text = json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise UsageError(f"no JSON can be made of this {type(value).__name__}: {exc}. Nothing was sent") from exc


def read_json(raw: bytes | None, _context: Any = None) -> Any:
    """Plain values of UTF-8 JSON; null stays None. ValueError: it is no JSON."""
    if raw is None:
        return None
    text = raw.decode()
    value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    if "\\ud" in text.lower():  # half of a character, which no UTF-8 can hold
        json.dumps(value, ensure_ascii=False).encode()
    return value


JSON = Codec(write_json, read_json)  # JSON in UTF-8 for plain values, dataclasses and models of pydantic and msgspec


def function_of(codec: Codec | None, name: Literal["serializer", "deserializer"]) -> Any:
    """The codec's function of this name; ConfigError: `codec` is none."""
    if codec is not None and not isinstance(codec, Codec):
        raise ConfigError(name="codec", value=codec, expected="a Codec, such as txlayer.JSON")
    return None if codec is None else getattr(codec, name)


class Body:
    """Reads a message's value as one type; a `Deserializer`, and as picklable as its parts.

    Args:
        kind: plain values of JSON, a dataclass, a model of pydantic or msgspec, or a list, dict or union of these.
        deserializer: what makes plain values of the bytes, or an instance of `kind` itself; None: the value is JSON.

    Raises:
        ConfigError: a value of this type cannot be made.
    """

    def __init__(self, kind: Any, deserializer: Deserializer | None = None) -> None:
        self._kind = kind
        self._deserializer = None if deserializer is read_json else deserializer
        try:
            self._from_text, self._from_value = _readers(kind)
        except _UnfitError as exc:
            if self._deserializer is None or not isinstance(kind, type):
                expected = "plain JSON, a dataclass, or a model of pydantic or msgspec"
                raise ConfigError(str(exc), name="body", value=_name(kind), expected=expected) from None
            self._from_value = _refusal(_name(kind))  # the deserializer may make one

    def __reduce__(self) -> tuple[Any, ...]:
        return Body, (self._kind, self._deserializer)

    def __call__(self, raw: bytes | None, context: Any) -> Any:
        """The body. ValueError: it cannot be read as this type; other errors are those of the type itself."""
        try:
            if self._deserializer is not None:
                value = self._deserializer(raw, context)
                is_one = isinstance(self._kind, type) and isinstance(value, self._kind)
                return value if is_one else self._from_value(value)
            return self._from_value(None) if raw is None else self._from_text(raw)
        except _UnfitError as exc:
            raise ValueError(f"not readable as {_name(self._kind)}: {exc}") from None
        except RecursionError:
            raise ValueError(f"not readable as {_name(self._kind)}: nested too deeply") from None


class _UnfitError(ValueError):
    """A value, or a type, that cannot be read; `path` leads to it."""

    def __init__(self, why: str, *path: str) -> None:
        super().__init__(why)
        self.why = why
        self.path = path

    def __str__(self) -> str:
        return ": ".join((".".join(self.path), self.why)) if self.path else self.why

    def inside(self, name: str) -> _UnfitError:
        """The same, as seen from outside."""
        return _UnfitError(self.why, name, *self.path)


def _translated(read: Reader, errors: Any, unfit: Callable[[Any], _UnfitError]) -> Reader:
    """The same, whose errors of these kinds become what `unfit` makes of them."""

    def made(value: Any) -> Any:
        try:
            return read(value)
        except errors as exc:
            raise unfit(exc) from None

    return made


def _readers(kind: Any) -> tuple[Callable[[bytes], Any], Reader]:
    """(from JSON, from plain values)."""
    if _mentions(kind, _PYDANTIC):
        return _of_pydantic(kind)
    if _mentions(kind, _MSGSPEC):
        return _of_msgspec(kind)
    read = _reader(kind, {})
    parsed = _translated(read_json, (ValueError, RecursionError), lambda exc: _UnfitError(f"no JSON: {exc}"))
    return lambda raw: read(parsed(raw)), read


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is larger than a float can be")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value of JSON")


# --- pydantic and msgspec ---------------------------------------------------------------------------------------------


def _mentions(kind: Any, attribute: str) -> bool:
    if isinstance(kind, type) and hasattr(kind, attribute):
        return True
    return any(_mentions(part, attribute) for part in get_args(kind))


def _of_pydantic(kind: Any) -> tuple[Callable[[bytes], Any], Reader]:
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(kind)

    def unfit(error: ValidationError) -> _UnfitError:
        # Its own text quotes the value, which is the user's data, and this text is logged.
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        return _UnfitError(first["msg"], *map(str, first["loc"]))

    from_json = _translated(adapter.validate_json, ValidationError, unfit)
    return from_json, _translated(adapter.validate_python, ValidationError, unfit)


def _of_msgspec(kind: Any) -> tuple[Callable[[bytes], Any], Reader]:
    import msgspec

    def unfit(error: Exception) -> _UnfitError:
        return _UnfitError(str(error))

    errors = msgspec.DecodeError  # `ValidationError` is one
    from_json = _translated(msgspec.json.Decoder(kind).decode, errors, unfit)
    return from_json, _translated(lambda value: msgspec.convert(value, kind), errors, unfit)


def _plain(value: Any) -> Any:
    """What `json` makes no text of, as what it does."""
    if hasattr(type(value), _PYDANTIC):
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(value, by_alias=True)
    if hasattr(type(value), _MSGSPEC):
        import msgspec

        return msgspec.to_builtins(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no type of JSON")


# --- the standard library ---------------------------------------------------------------------------------------------

_FROM_TEXT: Mapping[Any, Callable[[str], Any]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    Decimal: lambda text: _finite_decimal(Decimal(text)),
    UUID: UUID,
}
_LISTS: Mapping[Any, Callable[[list[Any]], Any]] = {
    list: list,
    Sequence: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}


def _finite_decimal(value: Decimal) -> Decimal:
    if not value.is_finite():
        raise ValueError("no number")
    return value


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _refusal(wanted: str) -> Reader:
    def read(value: Any) -> Any:
        raise _UnfitError(f"{wanted} is needed, not {'null' if value is None else type(value).__name__}")

    return read


def _reader(kind: Any, known: dict[Any, Reader]) -> Reader:
    """What reads this type from plain values; `known` are the dataclasses around it."""
    if type(kind).__hash__ is None:
        raise _UnfitError(f"{kind!r} is no type")
    kind = getattr(kind, "__supertype__", kind) if isinstance(kind, NewType) else getattr(kind, "__value__", kind)
    if kind is Any or kind is object:
        return lambda value: value
    if _mentions(kind, _PYDANTIC) or _mentions(kind, _MSGSPEC):
        return _readers(kind)[1]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        return _reader(parts[0], known)
    if origin in (Union, types.UnionType):
        return _union(parts, known)
    if origin is Literal:
        return _checked(
            lambda value: any(value == part and type(value) is type(part) for part in parts), f"one of {parts}"
        )
    if (origin or kind) in _LISTS:
        return _list(origin or kind, parts, known)
    if (origin or kind) in (dict, Mapping):
        return _dict(parts, known)
    if kind is None or kind is type(None):
        return _checked(lambda value: value is None, "null")
    if kind is float:
        whole = _called(float, "float")
        return lambda value: whole(value) if type(value) is int else _float(value)
    if kind in (bool, int, str):
        return _checked(lambda value: type(value) is kind, kind.__name__)
    if kind in _FROM_TEXT:
        return _from_text(kind)
    if isinstance(kind, type) and origin is None:
        return _class(kind, known)
    raise _UnfitError(f"{_name(kind)} cannot be read from JSON")


def _class(kind: Any, known: dict[Any, Reader]) -> Reader:
    if issubclass(kind, Enum):
        return _called(kind, f"a value of {kind.__name__}")
    if dataclasses.is_dataclass(kind):
        return known[kind] if kind in known else _dataclass(kind, known)
    raise _UnfitError(f"{_name(kind)} cannot be read from JSON")


def _checked(fits: Callable[[Any], bool], wanted: str) -> Reader:
    refuse = _refusal(wanted)
    return lambda value: value if fits(value) else refuse(value)


_float = _checked(lambda value: type(value) is float, "float")


def _called(make: Callable[[Any], Any], wanted: str) -> Reader:
    return _translated(make, (TypeError, ValueError, ArithmeticError), lambda _: _UnfitError(f"{wanted} is needed"))


def _from_text(kind: type) -> Reader:
    make, refuse = _called(_FROM_TEXT[kind], kind.__name__), _refusal(kind.__name__)

    def read(value: Any) -> Any:
        if type(value) is kind:  # a deserializer of Avro makes one
            return value
        if kind is Decimal and type(value) in (int, float):
            return Decimal(str(value))
        return make(value) if isinstance(value, str) else refuse(value)

    return read


def _union(parts: Sequence[Any], known: dict[Any, Reader]) -> Reader:
    objects = [
        part for part in parts if dataclasses.is_dataclass(part) or (get_origin(part) or part) in (dict, Mapping)
    ]
    if len(objects) > 1:
        raise _UnfitError("JSON does not say which of these it is: " + ", ".join(map(_name, objects)))
    readers = [_reader(part, known) for part in parts]
    refuse = _refusal(" or ".join(map(_name, parts)))

    def read(value: Any) -> Any:
        unfit = None
        for each in readers:
            try:
                return each(value)
            except _UnfitError as exc:
                unfit = exc if exc.path else unfit
        if unfit is not None:
            raise unfit  # it was the right one, with a wrong part
        return refuse(value)

    return read


def _list(kind: Any, parts: Sequence[Any], known: dict[Any, Reader]) -> Reader:
    make, refuse = _LISTS[kind], _refusal("a list")
    is_fixed = kind is tuple and bool(parts) and parts[-1] is not ...
    readers = [_reader(part, known) for part in parts if part is not ...] or [_reader(Any, known)]

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple | set | frozenset):
            return refuse(value)
        if is_fixed and len(value) != len(readers):
            raise _UnfitError(f"a list of {len(readers)} is needed, not of {len(value)}")
        found = []
        for index, one in enumerate(value):
            try:
                found.append(readers[index if is_fixed else 0](one))
            except _UnfitError as exc:
                raise exc.inside(str(index)) from None
        try:
            return make(found)
        except TypeError:
            raise _UnfitError("a set holds no lists and no objects") from None

    return read


def _dict(parts: Sequence[Any], known: dict[Any, Reader]) -> Reader:
    key, of = parts or (str, Any)
    if key is not str:
        raise _UnfitError(f"the keys of an object of JSON are text, not {_name(key)}")
    read_one, refuse = _reader(of, known), _refusal("an object")

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return refuse(value)
        found = {}
        for name, one in value.items():
            try:
                found[name] = read_one(one)
            except _UnfitError as exc:
                raise exc.inside(str(name)) from None
        return found

    return read


def _dataclass(kind: Any, known: dict[Any, Reader]) -> Reader:
    """Unknown fields are ignored, so that a sender may add one first."""
    readers: dict[str, Reader] = {}
    needed: list[str] = []
    refuse = _refusal(f"an object ({kind.__name__})")

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            return refuse(value)
        for name in needed:
            if name not in value:
                raise _UnfitError("it is missing", name)
        given = {}
        for name, read_one in readers.items():
            if name in value:
                try:
                    given[name] = read_one(value[name])
                except _UnfitError as exc:
                    raise exc.inside(name) from None
        return kind(**given)

    known[kind] = read  # before its fields: one may be of its own type
    for name, hint in _fields_of(kind).items():
        try:
            readers[name] = _reader(hint, known)
        except _UnfitError as exc:
            raise exc.inside(name) from None
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.default is parameter.empty:
            if parameter.name not in readers:
                raise _UnfitError("it is no field, so JSON does not have it", parameter.name)
            needed.append(parameter.name)
    return read


def _fields_of(kind: Any) -> dict[str, Any]:
    """{name: type} of what its constructor takes."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as exc:
        raise _UnfitError(f"{exc}; the types of its fields must be importable") from None
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
