"""How values look in a page: times, ages, sizes, text that others wrote, charts. What is not `Markup` is escaped by the template."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from txlayer.adapters.ports import GroupMember
from txlayer.adapters.telemetry import printable
from txlayer.errors import UsageError
from txlayer.operate import length_text, time_text
from txlayer.operate.history import parse_position
from txlayer.operate.live import BUCKET_COUNT, BUCKET_MS, Minute, quantile

VALUE_BYTES_SHOWN = 16 * 1024
LENGTH_MAX = 2_000  # characters of one field of an address


def text(value: object) -> str:
    """What others wrote, on one line, with control characters shown as escapes."""
    return "" if value is None else printable(str(value))


def time(at_ms: int | None) -> Markup | str:
    """The same as an element, which the script can show in local time."""
    if not at_ms:
        return ""
    said = time_text(at_ms)
    if not said.endswith("Z"):
        return said
    return Markup('<time datetime="{}">{}</time>').format(said.replace(" ", "T"), said)


def age(at_ms: int | None, now_ms: int) -> Markup | str:
    """How long ago; the instant is its title."""
    if not at_ms:
        return ""
    return Markup('<span class="age" title="{}">{}</span>').format(time_text(at_ms), length_text(now_ms - at_ms))


def member(found: GroupMember) -> str:
    """Who is in a group: its client's id, told apart by the end of its member id, and where it runs."""
    apart = found.member_id.removeprefix(f"{found.client_id}-")[:8]
    return text(f"{found.client_id}-{apart} on {found.host}")


def size(count: int | None) -> str:
    """Bytes in the largest unit that leaves a number above 1."""
    if count is None:
        return "null"
    if count == 1:
        return "1 byte"
    number, units = float(count), ("bytes", "KiB", "MiB", "GiB")
    for unit in units:
        if number < 1024 or unit == units[-1]:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1024
    raise AssertionError


def number(count: int) -> str:
    return f"{count:,}"


def content(raw: bytes | None) -> str:
    """A user's bytes: as text where they are UTF-8, else in hexadecimal; at most so many."""
    if raw is None:
        return "null"
    part = raw[:VALUE_BYTES_SHOWN]
    try:
        shown = part.decode("utf-8") if len(part) == len(raw) else part.decode("utf-8", "ignore")
        shown = lines(shown)
    except UnicodeDecodeError:
        shown = part.hex(" ")
    more = len(raw) - len(part)
    return shown + (f"\n… and {more:,} more bytes" if more else "")


def lines(value: object) -> str:
    return "\n".join(map(text, str(value).split("\n")))


def query(values: Mapping[str, object]) -> str:
    """The part of an address behind `?`; what is empty is left out."""
    return urlencode({name: str(value) for name, value in values.items() if value not in (None, "")})


def transaction_query(txn_id: str, since: str | None = None) -> str:
    """That of one transaction's page; an id that looks like a position says that it is none."""
    return query({"id": txn_id, "by": "id" if parse_position(txn_id) else "", "since": since})


def fields_of(given: Mapping[str, str], names: Iterable[str], *, length_max: int = LENGTH_MAX) -> dict[str, str]:
    """These fields of an address or of a form; others are ignored, and UsageError says that one is too long."""
    found = {name: given.get(name, "").strip() for name in names}
    if any(len(value) > length_max for value in found.values()):
        raise UsageError(f"a field has at most {length_max:,} characters")
    return found


def number_of(form: Mapping[str, str], name: str, *, digit_count_max: int = 15) -> int:
    """The number in a field; UsageError: it has none, or one with more digits."""
    text = form.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > digit_count_max:
        raise UsageError(f"the form has no {name}")
    return int(text)


# --- charts -----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 360, 64  # units of a chart; the page gives it its size


def rate_chart(minutes: Sequence[Minute], *, since_ms: int, now_ms: int) -> Markup:
    """Prepared, committed and rolled back transactions a second, counted since then."""
    seconds = BUCKET_MS / 1000
    last_ms = now_ms - now_ms % BUCKET_MS
    first_ms = max(last_ms - BUCKET_MS * BUCKET_COUNT, since_ms - since_ms % BUCKET_MS)
    nothing = dict.fromkeys(range(first_ms, last_ms, BUCKET_MS), 0.0)
    series = [
        ("prepared", nothing | {m.at_ms: m.prepared / seconds for m in minutes}),
        ("committed", nothing | {m.at_ms: m.committed / seconds for m in minutes}),
        ("rolled back", nothing | {m.at_ms: m.rolled_back / seconds for m in minutes}),
    ]
    return _chart("Transactions a second", series, "/s", now_ms)


def latency_chart(minutes: Sequence[Minute], *, now_ms: int) -> Markup:
    """Time from the first half record to the decision; upper bounds, each at most twice the true value."""
    series = [
        (name, {m.at_ms: quantile(m.latency_ms, share) / 1000 for m in minutes if m.latency_ms})
        for name, share in (("median", 0.5), ("99 of 100", 0.99))
    ]
    return _chart("Seconds to a decision", series, " s", now_ms)


def _chart(title: str, series: Sequence[tuple[str, Mapping[int, float]]], unit: str, now_ms: int) -> Markup:
    """Lines over time; the newest full bucket is at the right. A line has a gap where there is no value."""
    last_ms = now_ms - now_ms % BUCKET_MS - BUCKET_MS
    starts = [last_ms - BUCKET_MS * number for number in reversed(range(BUCKET_COUNT))]
    most = max((value for _, values in series for value in values.values()), default=0.0)
    parts, legend = [], []
    for number, (name, values) in enumerate(series):
        lines: list[list[str]] = [[]]
        for index, at in enumerate(starts):
            if at not in values:
                lines.append([])
                continue
            x, y = index * WIDTH / (BUCKET_COUNT - 1), HEIGHT - 2 - (values[at] / most * (HEIGHT - 4) if most else 0)
            lines[-1] += [f"{x:.1f},{y:.1f}"] if lines[-1] else [f"{x - 1:.1f},{y:.1f}", f"{x + 1:.1f},{y:.1f}"]
        parts += [
            Markup('<polyline class="line-{}" points="{}"/>').format(number, " ".join(line)) for line in lines if line
        ]
        newest = f"{values[last_ms]:,.3g}{unit}" if last_ms in values else "no value"
        legend.append(Markup('<span class="key-{}">{} {}</span>').format(number, name, newest))
    minutes = BUCKET_MS * BUCKET_COUNT // 60_000
    says = f"{title}, the last {minutes} minutes; at most {most:,.3g}{unit}"
    return Markup(
        "<figure><figcaption>{} <small>at most {} in {} min</small></figcaption>"
        '<svg viewBox="0 0 {} {}" role="img" preserveAspectRatio="none"><title>{}</title>{}</svg>'
        '<p class="legend">{}</p></figure>'
    ).format(
        title, f"{most:,.3g}{unit}", minutes, WIDTH, HEIGHT, says, Markup("").join(parts), Markup(" ").join(legend)
    )


FILTERS: dict[str, Callable[..., Any]] = {
    "text": text,
    "time": time,
    "age": age,
    "member": member,
    "size": size,
    "number": number,
    "content": content,
    "span": length_text,
    "query": query,
    "transaction_query": transaction_query,
    "lines": lines,
}
