"""docs/explanation/faults.md out of the tests: `python -m tests.support.fault_page` writes it. Never: what is in the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.selftest import test_check_judge, test_consumer_judge, test_run_checker
from tests.simulation.consumers.guards import CONSUMER_GUARDS
from tests.simulation.guards import GUARDS
from tests.support.checker import Kind
from tests.support.fault_matrix import MATRIX, Row

PLANTED = {
    **{what: kind for what, (kind, _) in test_run_checker.PLANTED.items()},
    **{what: kind for what, (kind, _) in test_check_judge.PLANTED.items()},
    **{what: kind for what, (kind, _) in test_consumer_judge.PLANTED.items()},
}
"""What is planted into clean histories, and the finding that it must lead to."""

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "faults.md"
COMMAND = ".venv/bin/python -m tests.support.fault_page"

_HEAD = f"""# Faults and invariants

Made from the tests by `{COMMAND}`; a test keeps page and tests equal and collects every test that is named here.

Which fault is covered, and which is not. Simulated worlds ([simulation.md](simulation.md)) show that nothing follows from a fault which
must not; tests on real brokers show that Kafka and its client do what the simulation supposes, and [chaos](chaos.md) does many faults of
both kinds to three brokers and real processes, for a bounded time in `make test` and for longer in `make chaos`.

## The matrix

"""

_INVARIANTS = """
## Invariants, and how each was seen red

An invariant that was never seen red may be one that nobody looks at. Each is planted into a clean history, once for every place where the
judge can find it (`tests/selftest/test_run_checker.py`, `test_check_judge.py` and `test_consumer_judge.py`, which fail if a place finds nothing); beside that stand the guards of
[guards.md](guards.md) without which a simulated world shows it, or another finding of its guard's row.

"""

_PROMISE = re.compile(r" \((P\d+)\)$")


def page() -> str:
    """The whole page."""
    return _HEAD + "\n".join(_matrix(MATRIX)) + "\n" + _INVARIANTS + "\n".join(_invariants()) + "\n"


def _matrix(rows: Iterable[Row]) -> Iterable[str]:
    yield "| where | fault | must happen | tests | not covered |"
    yield "| --- | --- | --- | --- | --- |"
    for row in rows:
        tests = "<br>".join(f"`{test}`" for test in row.tests) or "none"
        yield f"| {row.where} | {row.fault} | {row.outcome} | {tests} | {row.missing} |"


def _invariants() -> Iterable[str]:
    yield "| finding | promise | what is wrong | planted | guards |"
    yield "| --- | --- | --- | --- | --- |"
    for kind, text in _texts().items():
        promise = _PROMISE.search(text)
        planted = "; ".join(what for what, found in PLANTED.items() if found is kind)
        names = [guard.name for guard in GUARDS if kind in guard.kinds]
        names += [guard.name for guard in CONSUMER_GUARDS if kind in guard.kinds]
        guards = "; ".join(names)
        yield (
            f"| {kind.value} | {promise[1] if promise else ''} | {_PROMISE.sub('', text)} | "
            f"{planted or 'by the guard'} | {guards} |"
        )


def _texts() -> dict[Kind, str]:
    """What stands behind `#:` on each member's line."""
    source = (ROOT / "tests" / "support" / "checker.py").read_text("utf-8")
    found = dict(re.findall(r"^    ([A-Z_]+) = \"[a-z-]+\"  #: (.+)$", source, re.MULTILINE))
    return {kind: found[kind.name] for kind in Kind}


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
