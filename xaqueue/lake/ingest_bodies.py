"""A body is a row or a dead letter: a row where it is one JSON object that fits the schema in every field.

What fits which type is as Spark's parser has it, so that a job of Spark's makes the same rows; the syntax is checked
strictly. A field that the schema does not name is passed over, one that is missing is null.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from xaqueue.errors import InvalidArgument

KEPT = ("seq", "message_id", "enqueued_at", "correlation_id", "headers")
"""What a row says of its message, beside its space and queue."""
MESSAGE = (*KEPT, "priority", "content_type", "space", "queue", "body")
"""Columns of a table that are the message's own; all others are fields of its body."""
TAKEN = frozenset({*MESSAGE, "reason"})
"""Names that a field of a body cannot have: it gets ``body_`` before its own."""

_PLAIN = {
    **dict.fromkeys(("BOOLEAN", "BOOL"), pa.bool_()),
    **dict.fromkeys(("TINYINT", "BYTE"), pa.int8()),
    **dict.fromkeys(("SMALLINT", "SHORT"), pa.int16()),
    **dict.fromkeys(("INT", "INTEGER"), pa.int32()),
    **dict.fromkeys(("BIGINT", "LONG"), pa.int64()),
    **dict.fromkeys(("FLOAT", "REAL"), pa.float32()),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ"), pa.timestamp("us", tz="UTC")),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\w+\s*\(\s*\d+\s*(?:,\s*\d+\s*)?\)|\w+|\S)")
_DECIMAL = re.compile(r"(?:DECIMAL|DEC|NUMERIC)(?:\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_FORMS = "DDL such as 'carrier STRING, dep_delay INT, stops ARRAY<STRING>', or a file with that"
_TEXT = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=float)
_DEEPEST = 30
"""Of a sample: what is nested deeper is text. Delta's schema takes about 40."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Reader = Callable[[Any], Any]
"""Of a value as JSON has it, other than null, the one of the column. Raises ValueError or TypeError."""


def _object(body: bytes, loads: Callable[[str], Any] = json.loads) -> dict[str, Any] | str:
    """The object, or why it is none."""
    try:
        found = loads(body.decode())
    except UnicodeDecodeError as error:
        return f"no UTF-8: {error.reason} at byte {error.start}"
    except RecursionError:
        return "no JSON: nested too deep"
    except ValueError as error:
        return f"no JSON: {error}"
    except ArithmeticError:
        return "no JSON: a number out of all range"
    return found if isinstance(found, dict) else "no JSON object"


def column(field: str) -> str:
    """The name that a body's field has as a column."""
    return f"body_{field}" if re.sub("^(body_)+", "", field.lower()) in TAKEN else field


def field_of(of: str) -> str:
    """The name in a body of what is in this column."""
    name = of.removeprefix("body_")
    return name if column(name) == of else of


def given(text: str) -> pa.Schema:
    """The fields that a person gave: DDL, or the name of a file with DDL. Raises InvalidArgument."""
    is_file = os.path.isfile(text)  # noqa: PTH113  # that of a Path raises where the text is too long for a name
    return _checked(_Words(Path(text).read_text("utf-8") if is_file else text).schema(), text)


def sampled(bodies: Iterable[bytes]) -> pa.Schema:
    """The fields of these bodies, as far as they are JSON objects. Raises InvalidArgument where none has a field."""
    found = [value for body in bodies if isinstance(value := _object(body), dict)]
    names = dict.fromkeys(name for value in found for name in value if _is_name(name))
    if not names:
        raise InvalidArgument(
            "no JSON object with a field was found among the first messages to take a schema from: "
            f"give --schema, {_FORMS}"
        )
    return _checked(
        pa.schema([(name, _kind_of([value.get(name) for value in found])) for name in names]), "of the sample"
    )


def _is_name(name: str) -> bool:
    """Of a column: some text, and no half of a pair in it."""
    return name != "" and name.encode(errors="ignore").decode() == name


def _kind_of(values: list[Any]) -> pa.DataType:
    """In which all of them fit: text, as JSON has it, where they are of several."""
    try:
        return _settled(pa.array(values).type)
    except (pa.ArrowException, OverflowError, ValueError):
        return pa.string()


def _settled(kind: pa.DataType, deeper: int = _DEEPEST) -> pa.DataType:
    """What was always null, or had no field, or one that no column can have, is text."""
    if not deeper:
        return pa.string()
    if pa.types.is_struct(kind) and len(kind) and all(field.name for field in kind):
        return pa.struct([(field.name, _settled(field.type, deeper - 1)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type, deeper - 1))
    return pa.string() if pa.types.is_null(kind) or pa.types.is_struct(kind) else kind


def _checked(found: pa.Schema, what: str) -> pa.Schema:
    names = [column(name).lower() for name in found.names]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"schema {what!r} is refused: there is more than one column {name}; give {_FORMS}")
    return found


class Bodies:
    """Makes columns of bodies, by the fields that the schema has."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._readers = [(field.name, _field(field)) for field in schema]
        exact = any("decimal" in str(field.type) for field in schema)
        self._loads = json.JSONDecoder(parse_float=Decimal).decode if exact else json.loads

    def columns(self, bodies: Sequence[bytes]) -> tuple[list[str | None], list[pa.Array]]:
        """Why each is no row, and the columns of those that are."""
        reasons: list[str | None] = []
        rows = []
        for body in bodies:
            found = _object(body, self._loads)
            if isinstance(found, dict):
                try:
                    rows.append([read(found.get(name)) for name, read in self._readers])
                    reasons.append(None)
                    continue
                except (ValueError, TypeError, ArithmeticError, RecursionError):
                    found = "does not fit the schema"
            reasons.append(found)
        return reasons, [pa.array([row[at] for row in rows], one.type) for at, one in enumerate(self.schema)]


def reader(kind: pa.DataType) -> Reader:
    """How a value becomes one of this type."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        of = _field(kind.value_field)
        return lambda value: [of(one) for one in _a(list, value)]
    if types.is_map(kind):
        key, of = reader(kind.key_type), _field(kind.item_field)
        return lambda value: [(key(name), of(one)) for name, one in _a(dict, value).items()]
    if types.is_struct(kind):
        fields = [(field.name, _field(field)) for field in kind]
        return lambda value: {name: of(value.get(name)) for name, of in fields} if _a(dict, value) is value else None
    if types.is_integer(kind):
        most = 1 << kind.bit_width - 1
        return lambda value: value if -most <= _a(int, value) < most else _refuse(value)
    if types.is_floating(kind):
        return _float
    if types.is_decimal(kind):
        return lambda value: _decimal(value, kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return _time if kind.tz else lambda value: datetime.fromisoformat(value).replace(tzinfo=None)
    plain: list[tuple[Callable[[pa.DataType], bool], Reader]] = [
        (types.is_boolean, lambda value: _a(bool, value)),
        (types.is_date, lambda value: date.fromisoformat(value)),
        (lambda one: types.is_binary(one) or types.is_large_binary(one), lambda value: b64decode(value, validate=True)),
        (lambda one: types.is_string(one) or types.is_large_string(one), _text),
    ]
    for fits, read in plain:
        if fits(kind):
            return read
    raise InvalidArgument(f"a JSON value cannot become {kind}: name a table whose columns have other types")


def _field(field: pa.Field) -> Reader:
    read = reader(field.type)
    return lambda value: read(value) if value is not None else None if field.nullable else _refuse(value)


def _a(kind: type, value: Any) -> Any:
    return value if type(value) is kind else _refuse(value)


def _refuse(value: Any) -> Any:
    raise ValueError(value)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else _TEXT.encode(value)
    text.encode()  # half of a pair is no character
    return text


def _float(value: Any) -> float:
    if isinstance(value, str):
        return float(value) if value in ("NaN", "Infinity", "-Infinity") else _refuse(value)
    return float(_refuse(value) if isinstance(value, bool) else value)


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    number = Decimal(_refuse(value) if isinstance(value, bool | list) else value)
    exact = number if number.is_finite() else _refuse(value)
    return exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(precision))


def _time(value: Any) -> datetime:
    if type(value) is int:
        return _EPOCH + timedelta(seconds=value)
    found = datetime.fromisoformat(value)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


class _Words:
    """Spark's DDL of a table's columns."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._left = deque(_TOKEN.findall(text))

    def schema(self) -> pa.Schema:
        found = self._fields("")
        return pa.schema(found) if found else self._refuse("it has no columns")

    def _fields(self, end: str) -> list[pa.Field]:
        found: list[pa.Field] = []
        while not self._skip(end):
            if found:
                self._want(",")
            name = self._word()
            if name[0] != "`" and not re.fullmatch(r"\w+", name):
                self._refuse(f"{name!r} is no name")
            self._skip(":")
            found.append(pa.field(name.strip("`").replace("``", "`"), self._kind()))
            if self._skip("NOT"):
                self._want("NULL")
            if self._skip("COMMENT"):
                self._word()
        return found

    def _kind(self) -> pa.DataType:
        name = self._word().upper()
        if name in _PLAIN:
            return _PLAIN[name]
        if exact := _DECIMAL.fullmatch(name):
            digits = [int(exact[1] or 10), int(exact[2] or 0)]
            return pa.decimal128(*digits) if digits[1] <= digits[0] in range(1, 39) else self._refuse(f"{name} is none")
        if name not in ("ARRAY", "MAP", "STRUCT"):
            self._refuse(f"{name} is no type of a column")
        self._want("<")
        if name == "STRUCT":
            return pa.struct(self._fields(">"))
        if name == "MAP":
            if self._kind() != pa.string():
                self._refuse("the keys of a JSON object are STRING")
            self._want(",")
        of = self._kind()
        self._want(">")
        return pa.map_(pa.string(), of) if name == "MAP" else pa.list_(of)

    def _word(self) -> str:
        return self._left.popleft() if self._left else str(self._refuse("it ends too early"))

    def _skip(self, word: str) -> bool:
        """Whether it comes next; the empty one at the end."""
        if "".join([*self._left][:1]).upper() != word:
            return False
        if word:
            self._left.popleft()
        return True

    def _want(self, word: str) -> None:
        if not self._skip(word):
            self._refuse(f"{word} is missing before {self._left[0] if self._left else ''!r}")

    def _refuse(self, why: str) -> Any:
        raise InvalidArgument(f"schema {self._text!r} is refused: {why}; give {_FORMS}")
