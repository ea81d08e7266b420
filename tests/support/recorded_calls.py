"""The journals that consumers under chaos wrote, put together for the judge. Never a judgement.

Each line is a JSON object with `what`: `began` and `ended` of a handler's call, `taken` when its consumer learned that it failed,
`breaker` when that opened or closed, `learned` (what was read of the lock log),
`holder` (a name in the lock log). Processes share nothing, so numbers are those of their process; here they get one for all.
"""

import base64
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.consumer_history import BreakerTimes, HandlerCall, Learned

HEARD_MS = 200.0
"""So long after a breaker opened a worker may begin what it was given before."""


@dataclass(slots=True)
class Recorded:
    """What the journals of all processes hold."""

    calls: list[HandlerCall] = field(default_factory=list)
    learned: list[Learned] = field(default_factory=list)
    holders: dict[str, str] = field(default_factory=dict)


def read_journals(folder: Path) -> Recorded:
    """All that stand in a folder; a last half line of a killed process is left out."""
    journals = {}
    for file in sorted(folder.glob("calls-*.jsonl")):
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        journals[file.stem.removeprefix("calls-")] = [json.loads(line) for line in lines]
    return put_together(journals)


def put_together(journals: Mapping[str, Iterable[Mapping[str, Any]]]) -> Recorded:
    """{process: its lines} as one history, in the order of time."""
    found = Recorded()
    tenures: dict[tuple[str, int], int] = {}
    for process, lines in journals.items():
        calls: dict[int, HandlerCall] = {}
        breaker = BreakerTimes(float("inf"), heard=[])
        for line in lines:
            if line["what"] == "began":
                tenure = tenures.setdefault((process, line["tenure"]), len(tenures))
                calls[line["n"]] = _call(process, tenure, line)
            elif line["what"] == "ended":
                call = calls[line["n"]]
                # The brokers have whole milliseconds: what ended is not to seem later than what they stored of it.
                call.ended_ms, call.result = math.floor(line["at_ms"]), line["result"]
            elif line["what"] == "taken":
                calls[line["n"]].taken_ms = math.floor(line["at_ms"])
            elif line["what"] == "breaker":
                # As calls have it below: one that begins when it has closed is not to seem earlier.
                breaker.changes.append((math.floor(line["at_ms"]), line["is_open"]))
                assert breaker.heard is not None
                breaker.heard.append((line["heard_ms"] + HEARD_MS, line["is_open"]))
            elif line["what"] == "learned":
                found.learned += [Learned(line["at_ms"], process, *at) for at in line["places"]]
            elif line["what"] == "holder":
                found.holders[line["holder"]] = process
        for call in calls.values():
            call.breaker = breaker
        found.calls += calls.values()
    found.calls.sort(key=lambda call: call.began_ms)
    for number, call in enumerate(found.calls):
        call.batch = number
        # A quick handler begins, ends and is stored within one millisecond: that store was not there before it.
        call.began_ms = math.floor(call.began_ms)
    return found


def _call(process: str, tenure: int, line: Mapping[str, Any]) -> HandlerCall:
    topic, partition, offset = line["place"]
    key = None if line["key"] is None else base64.b64decode(line["key"])
    return HandlerCall(
        process,
        line["writer"],
        tenure,
        topic,
        partition,
        offset,
        key,
        line["attempt"],
        line["token"],
        line["at_ms"],
        request_offset=line.get("request"),
        letter_offset=line.get("letter"),
    )
