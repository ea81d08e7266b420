"""The next release, as far as its neighbours can tell: it writes version 2, with a field that this one does not know.

python -m tests.support.next_release coordinator run …
"""

from collections.abc import Callable
from typing import Any

from txlayer.adapters.ports import StoredOffset
from txlayer.coordinator import loop, recovery
from txlayer.core import codec
from txlayer.core.codec import NEXT_VERSION, TIMED_VERSION, VERSION


def next_form(record: str) -> str:
    """The same record as the next release writes it."""
    if record.startswith(f"{TIMED_VERSION}|"):
        return record  # it has no room for further fields
    if record.startswith(f"{NEXT_VERSION}|"):  # an op line with a time
        return f"{record}|of the next release"
    assert record.startswith(f"{VERSION}|")
    return f"{NEXT_VERSION}|{record[2:]}|of the next release"


def _bytes(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    return lambda value: next_form(encode(value).decode()).encode()


def install() -> None:
    """This process is of the next release from now on."""
    vars(codec).update(encode_summary=_bytes(codec.encode_summary), encode_check=_bytes(codec.encode_check))
    encode_op = codec.encode_op
    codec.encode_op = lambda op: next_form(encode_op(op))

    def encode_stored(*arguments: Any, **given: Any) -> Any:
        found = recovery.encode_stored(*arguments, **given)
        return {place: StoredOffset(o.offset, next_form(o.metadata)) for place, o in found.items()}

    loop.encode_stored = encode_stored  # type: ignore[attr-defined]  # as the loop knows it


if __name__ == "__main__":
    from txlayer.cli import run

    install()
    run()
