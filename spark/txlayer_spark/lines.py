"""The forms of our lines, headers and keys as patterns for Spark, and the expressions that read a field.

A test holds them against `txlayer.core.codec`. Never a whole record (parse.py), never Python per row.
"""

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from txlayer.core.codec import NEXT_VERSION, TIMED_VERSION, VERSION
from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayOutcome
from txlayer.core.leases import LockKind
from txlayer.core.messages import GROUP_LENGTH_MAX, RESERVED_HEADER_PREFIX, Resolution, Source


def empty_array(kind: ArrayType | str) -> Column:
    """An array of this type without elements.

    `F.array()` has elements of text in a session with `createEmptyCollectionUsingStringType`, and Spark casts text to no struct.
    """
    return F.array_repeat(F.lit(None), 0).cast(kind)


def _ascii_but(excluded: str) -> str:
    r"""One character of ASCII but for those: what is not UTF-8 reads as U+FFFD and fits nowhere.

    Named one by one: Java looks such a class up in one table, and asks each part of `[\x00-\x7F&&[^|]]` in turn.
    """
    return "[" + "".join(rf"\x{n:02x}" for n in range(128) if chr(n) not in excluded) + "]"


def _at_most(count: int, character: str) -> str:
    """As many of those as stand here between others, 1 to `count`.

    Java matches `{1,128}` by a call for each character, a fifth of what a line costs; it looks back only where there is room.
    """
    return rf"{character}+(?<!{character}{{{count + 1}}})"


_FIELD = _ascii_but("|")
_LINE_FIELD = _ascii_but("|\n")
_KEY_PART = _ascii_but("|/\n")
_ASCII = _ascii_but("")
_NUMBER = r"[0-9]{1,19}"
KEY = rf"{_at_most(128, _KEY_PART)}/{_KEY_PART}{{8}}"  # id/nonce
_TOPIC = rf"(?!\.{{1,2}}\|){_at_most(249, '[A-Za-z0-9._-]')}"
KEY_HASH = r"[0-9a-f]{16}"
_GROUP, _LINE_GROUP = _at_most(GROUP_LENGTH_MAX, _FIELD), _at_most(GROUP_LENGTH_MAX, _LINE_FIELD)
_OPTION = rf"(?:k{KEY_HASH}|[intmd]{_NUMBER}|(?:[^kintmd,|\n][^,|\n]*)?)"
_OPTIONS = rf"(?:{_OPTION}(?:,{_OPTION})*)"
_REQUEST_ID = r"[A-Za-z0-9._-]{1,64}"
_SOURCES = "|".join(source.value for source in Source)
_LETTERS = "".join(resolution.value for resolution in Resolution) + "A"


def _record(fields: str, *, further: str = _ASCII, timed: str = "") -> str:
    """A line of those fields; the next release may add others after them, of `further`, which are ignored.

    `timed`: what comes before it in a line with a time, which has another version.
    """
    # The empty group is there when that version is, and only then can it be named again.
    versions = rf"{VERSION}|{NEXT_VERSION}()" + (rf"|{TIMED_VERSION}{timed}" if timed else "")
    return rf"\A(?:{versions})\|{fields}(?:\1\|{further}*)?\z"


ASCII = rf"\A{_ASCII}*\z"
HALF = _record(
    rf"{KEY}\|{_LINE_GROUP}\|{_TOPIC}\|{_NUMBER}/{_NUMBER}\|{_NUMBER}\|(?={_ASCII}*\z){_OPTIONS}",
    further=_ascii_but("\n"),
    timed=rf"(?=.*[|,]d{_NUMBER}(?:,|\z))",
)
OP = _record(rf"[{_LETTERS}]\|{KEY}\|{_GROUP}\|{_NUMBER}\|{_NUMBER}\|(?:{_SOURCES})\|(?:{_NUMBER})?\|{_FIELD}*")
CHECK = _record(rf"(?:[QPX]\|{KEY}|L\|(?:{KEY})?)\|{_GROUP}\|{_NUMBER}\|{_NUMBER}\|{_NUMBER}\|{_NUMBER}\|{_FIELD}*")
_SUMMARY_FIELDS = (
    rf"{_FIELD}*\|{_FIELD}*\|{_FIELD}*\|{_NUMBER}\|{_NUMBER}(?:\+{_NUMBER})*\|{_NUMBER}\|{_NUMBER}\|"
    rf"{_NUMBER}\|{_NUMBER}\|(?:{KEY_HASH})?\|(?:commit|prepare)\|(?:{_NUMBER})?\|(?:{_NUMBER}:{_NUMBER})?\|"
    rf"{_NUMBER}\|{_FIELD}*\|{_NUMBER}/{_NUMBER}/{_NUMBER}/{_NUMBER}"
)
_DUE = rf"{_NUMBER}/{_NUMBER}/(?:{_NUMBER}(?:\+{_NUMBER})*)?/(?:{_NUMBER}:{_NUMBER})?"
SUMMARY = rf"{_record(_SUMMARY_FIELDS)}|\A{TIMED_VERSION}\|{_SUMMARY_FIELDS}\|{_DUE}(?:\|{_FIELD}*)?\z"
ORIGIN = rf"\A{_NUMBER}:{_NUMBER}\|{_NUMBER}/{_NUMBER}\|{_NUMBER}\z"
SUMMARY_KEY = rf"\A{KEY}\z"
CONTENT_KEY = rf"\A{KEY}/{_NUMBER}\z"
QUARANTINE_KEY = rf"\Aorigin/{_ascii_but('/')}+/{_NUMBER}/{_NUMBER}(?::{_NUMBER})?\z"
QUARANTINE_OF_TXN_KEY = rf"\Aorigin/{_ascii_but('/')}+\.(?:half/{_NUMBER}/{_NUMBER}|op/{_NUMBER}/{_NUMBER}:{_NUMBER})\z"
TXN_ID = r"\A[!-.0-{}~]{1,128}\z"
_CLAIM, _OF_A_HOLDER = LockKind.CLAIM.value, LockKind.RENEWAL.value + LockKind.RELEASE.value
LOCK = _record(
    rf"(?:{_CLAIM}\|{_NUMBER}\|{_FIELD}+\|{_FIELD}*\|(?:{_NUMBER})?|"
    rf"[{_OF_A_HOLDER}]\|{_NUMBER}\|{_FIELD}+\|{_FIELD}*\|{_NUMBER})\|{_FIELD}*"
)
QUEUE = rf"\A((?s:.+))/(?!\.{{1,2}}/)([A-Za-z0-9._-]{{1,249}})/({_NUMBER})\z"
"""group/topic/partition; the group is whatever is before the last two."""
_REASONS = "|".join(reason.value for reason in DeadLetterReason)
DEAD_LETTER = _record(
    rf"(?:{_REASONS})\|{_TOPIC}\|{_NUMBER}\|{_NUMBER}\|{_NUMBER}\|{_NUMBER}\|{_NUMBER}\|{_NUMBER}\|"
    rf"{_FIELD}*\|{_FIELD}*\|{_FIELD}+"
)
_OF_A_LETTER = ReplayKind.REPLAY.value + ReplayKind.DROP.value
_OF_A_QUEUE = ReplayKind.PAUSE.value + ReplayKind.RESUME.value
_OUTCOMES = "|".join(outcome.value for outcome in ReplayOutcome)
REPLAY = _record(
    rf"(?:[{_OF_A_LETTER}]\|{_REQUEST_ID}\|{_NUMBER}|[{_OF_A_QUEUE}]\|{_REQUEST_ID}\||"
    rf"{ReplayKind.RESULT.value}\|{_REQUEST_ID}\|(?:{_NUMBER})?\|(?:{_OUTCOMES}))\|{_FIELD}*"
)


def sure(condition: Column | str) -> Column:
    """The condition; False where it is null."""
    return F.coalesce(condition, F.lit(False))


def text(raw: Column) -> Column:
    """Bytes as text; nothing is refused here."""
    return raw.cast("string")


def whole(field: Column) -> Column:
    """Digits as a number; null when they are none, or more than 63 bits hold."""
    return field.try_cast("bigint")


def partition(field: Column) -> Column:
    """The number of a partition; null when the field is none, or more than Kafka has."""
    return field.try_cast("int")


FIRST_MS = -62_135_510_400_000
LAST_MS = 253_402_214_399_999
"""A day behind the first and before the last one that Python can show: what a writer says of a time is any number."""


def time_of(ms: Column) -> Column:
    """A number of milliseconds as a timestamp, from `FIRST_MS` to `LAST_MS`; null without one."""
    shown = F.least(F.greatest(ms, F.lit(FIRST_MS)), F.lit(LAST_MS))
    return F.timestamp_millis(F.when(F.isnotnull(ms), shown))


def day_of(time: Column) -> Column:
    """The day of a timestamp in UTC: Spark's own functions take the session's time zone, which may be another one in the next run."""
    return F.date_from_unix_date(F.floor(F.unix_seconds(time) / _DAY_S).cast("int"))


_DAY_S = 86_400


def fields(line: Column) -> Column:
    return F.split(line, r"\|")


def before(pair: Column, separator: str) -> Column:
    """The first of two parts; `split_part` would compile a pattern for each row."""
    return F.substring_index(pair, separator, 1)


def after(pair: Column, separator: str) -> Column:
    return F.substring_index(pair, separator, -1)


def txn_id_of(key: Column) -> Column:
    return before(key, "/")


def nonce_of(key: Column) -> Column:
    return after(key, "/")


def nonce_number(nonce: Column) -> Column:
    """A nonce as a number: the one that its hexadecimal digits write, else, larger than any of these, its eight characters."""
    is_hex = F.translate(nonce, "0123456789abcdef", "") == ""
    return F.conv(F.when(is_hex, nonce).otherwise(F.hex(nonce)), 16, 10).cast("bigint")


def nonce_text(number: Column) -> Column:
    """A nonce as records name it; null without one."""
    digits = F.lower(F.hex(number))
    written = F.when(number < 1 << 32, F.lpad(digits, 8, "0"))
    return F.when(number >= 0, written.otherwise(F.unhex(F.lpad(digits, 16, "0")).cast("string")))


def unquoted(field: Column) -> Column:
    """Percent-encoded text, decoded; what is not such an encoding stays as it is.

    Bytes that are no UTF-8 read as U+FFFD; how many of these a run of such bytes gives is Java's choice, not Python's.
    """
    # Spark decodes forms, where a plus is a blank, and stops at a percent sign that begins nothing.
    escaped = F.regexp_replace(field, "%(?![0-9A-Fa-f]{2})", "%25")
    decoded = F.try_url_decode(F.replace(escaped, F.lit("+"), F.lit("%2B")))
    return F.when(F.contains(field, F.lit("%")), F.coalesce(decoded, field)).otherwise(field)


def header(headers: Column, name: str, *, usual_index: int = -1) -> Column:
    """The value of the last header of that name; null without one.

    `usual_index` is where ours nearly always is, from the end: one look instead of a walk that Spark does not compile.
    """
    usual = F.try_element_at(headers, F.lit(usual_index))
    others = [F.try_element_at(headers, F.lit(at)) for at in range(usual_index + 1, 0)]
    is_last = reduce(lambda so, each: so & (each["key"] != name), others, usual["key"] == name)
    every = F.filter(headers, lambda each: each["key"] == name)
    return F.when(is_last, usual["value"]).otherwise(F.try_element_at(every, F.lit(-1))["value"])


def of_user(headers: Column, *usual: str) -> Column:
    """The headers that are not ours; null stays null.

    `usual` are ours that are nearly always there, behind all others: one look at the names instead of a walk that Spark does not compile.
    """
    others = F.filter(headers, lambda each: ~each["key"].startswith(RESERVED_HEADER_PREFIX))
    if not usual:
        return others
    names = F.concat(F.lit("\n"), F.array_join(headers["key"], "\n"))
    ahead = F.substring_index(names, f"\n{RESERVED_HEADER_PREFIX}", 1)
    is_usual = F.concat(ahead, F.lit("".join(f"\n{name}" for name in usual))) == names
    for at, name in enumerate(usual, start=-len(usual)):
        is_usual = is_usual & (F.try_element_at(headers, F.lit(at))["key"] == name)
    return F.when(is_usual, F.slice(headers, F.lit(1), F.size(headers) - len(usual))).otherwise(others)


def option(options: Column, letter: str, form: str = _NUMBER) -> Column:
    """The value of the last option of that letter; null without one."""
    found = option_or_empty(options, letter, form)
    return F.when(found != "", found)


def option_or_empty(options: Column, letter: str, form: str = _NUMBER) -> Column:
    """The same, empty or null without one: Spark would look twice to make it null."""
    # Nearly every message has no options at all.
    found = F.regexp_extract(options, rf"\A(?:.*,)?{letter}({form})(?:,.*)?\z", 1)
    return F.when(options != "", found)
