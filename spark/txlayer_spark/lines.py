"""The forms of our lines, headers and keys as patterns for Spark, and the expressions that read a field.

The same rules as in `txlayer.core.codec` and `txlayer.core.fields`, which a test holds them against. Never a whole record
(parse.py), never Python per row.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from txlayer.core.fields import PARTITION_MAX, VERSION
from txlayer.core.messages import RESERVED_HEADER_PREFIX, Resolution, Source

# One character of ASCII but for the separators of ours: what is not UTF-8 reads as U+FFFD and fits nowhere.
_FIELD = r"[\x00-\x7F&&[^|]]"
_LINE_FIELD = r"[\x00-\x7F&&[^|\n]]"
_NUMBER = r"[0-9]{1,19}"
KEY = r"[\x00-\x7F&&[^|/\n]]{1,128}/[\x00-\x7F&&[^|/\n]]{8}"
"""id/nonce."""
_TOPIC = r"(?!\.{1,2}\|)[A-Za-z0-9._-]{1,249}"
_KEY_HASH = r"[0-9a-f]{16}"
_OPTION = rf"(?:k{_KEY_HASH}|[intm]{_NUMBER}|(?:[^kintm,|\n][^,|\n]*)?)"
_OPTIONS = rf"(?:{_OPTION}(?:,{_OPTION})*)"
_SOURCES = "|".join(source.value for source in Source)
_LETTERS = "".join(resolution.value for resolution in Resolution) + "A"

ASCII = r"\A[\x00-\x7F]*\z"
HALF = (
    rf"\A{VERSION}\|{KEY}\|{_LINE_FIELD}+\|{_TOPIC}\|{_NUMBER}/{_NUMBER}\|{_NUMBER}\|"
    rf"(?=[\x00-\x7F]*\z){_OPTIONS}\z"
)
OP = (
    rf"\A{VERSION}\|[{_LETTERS}]\|{KEY}\|{_FIELD}+\|{_NUMBER}\|{_NUMBER}\|(?:{_SOURCES})\|(?:{_NUMBER})?\|"
    rf"{_FIELD}*\z"
)
CHECK = (
    rf"\A{VERSION}\|(?:[QX]\|{KEY}|L\|(?:{KEY})?)\|{_FIELD}+\|{_NUMBER}\|{_NUMBER}\|{_NUMBER}\|{_NUMBER}\|"
    rf"{_FIELD}*\z"
)
SUMMARY = (
    rf"\A{VERSION}\|{_FIELD}*\|{_FIELD}*\|{_FIELD}*\|{_NUMBER}\|{_NUMBER}(?:\+{_NUMBER})*\|{_NUMBER}\|{_NUMBER}\|"
    rf"{_NUMBER}\|{_NUMBER}\|(?:{_KEY_HASH})?\|(?:commit|prepare)\|(?:{_NUMBER})?\|(?:{_NUMBER}:{_NUMBER})?\|"
    rf"{_NUMBER}\|{_FIELD}*\|{_NUMBER}/{_NUMBER}/{_NUMBER}/{_NUMBER}\z"
)
ORIGIN = rf"\A{_NUMBER}:{_NUMBER}\|{_NUMBER}/{_NUMBER}\|{_NUMBER}\z"
SUMMARY_KEY = rf"\A{KEY}\z"
CONTENT_KEY = rf"\A{KEY}/{_NUMBER}\z"
KEPT_ASIDE_KEY = rf"\Aorigin/[\x00-\x7F&&[^/]]+/{_NUMBER}/{_NUMBER}(?::{_NUMBER})?\z"


def text(raw: Column) -> Column:
    """Bytes as text; nothing is refused here."""
    return raw.cast("string")


def whole(field: Column) -> Column:
    """Digits as a number; null when they are none, or more than 63 bits hold."""
    return field.try_cast("bigint")


def fields(line: Column) -> Column:
    """The fields of a line."""
    return F.split(line, r"\|")


def txn_id_of(key: Column) -> Column:
    """The id in id/nonce."""
    return F.split_part(key, F.lit("/"), F.lit(1))


def nonce_of(key: Column) -> Column:
    """The nonce in id/nonce."""
    return F.split_part(key, F.lit("/"), F.lit(2))


def unquoted(field: Column) -> Column:
    """Percent-encoded text; what is no such encoding stays as it is."""
    # Spark decodes forms, where a plus is a blank, and stops at a percent sign that begins nothing.
    escaped = F.regexp_replace(field, "%(?![0-9A-Fa-f]{2})", "%25")
    decoded = F.try_url_decode(F.replace(escaped, F.lit("+"), F.lit("%2B")))
    return F.when(F.contains(field, F.lit("%")), F.coalesce(decoded, field)).otherwise(field)


def header(headers: Column, name: str) -> Column:
    """The value of the last header of that name; null without one."""
    last = F.try_element_at(headers, F.lit(-1))
    every = F.filter(headers, lambda each: each["key"] == name)
    # Ours nearly always stands last: one look instead of a walk.
    return F.when(last["key"] == name, last["value"]).otherwise(
        F.try_element_at(every, F.lit(-1))["value"]
    )


def of_user(headers: Column) -> Column:
    """The headers that are not ours; null stays null."""
    return F.filter(headers, lambda each: ~each["key"].startswith(RESERVED_HEADER_PREFIX))


def option(options: Column, letter: str, form: str = _NUMBER) -> Column:
    """The value of the last option of that letter; null without one."""
    # Nearly every message has no options at all.
    found = F.regexp_extract(options, rf"\A(?:.*,)?{letter}({form})(?:,.*)?\z", 1)
    return F.when((options != "") & (found != ""), found)


def key_hash_option(options: Column) -> Column:
    """The hash of the ordering key; null without one."""
    return option(options, "k", _KEY_HASH)


def is_partition(number: Column) -> Column:
    """Whether Kafka could have a partition of that number; a missing one could."""
    return number.isNull() | (number <= PARTITION_MAX)
