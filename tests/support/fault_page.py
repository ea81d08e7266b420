"""The tests of each fault in docs/explanation/faults.md: `python -m tests.support.fault_page` writes them into the page.

For example, `@pytest.mark.fault("producer: its clock is a day off")` puts its test into the row of the page whose first two
columns are `producer` and `its clock is a day off`. The other columns of that table are written by hand.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.selftest import test_check_judge, test_consumer_judge, test_run_checker
from tests.simulation.consumers.guards import CONSUMER_GUARDS
from tests.simulation.guards import GUARDS
from tests.support.checker import Kind
from tests.support.marked_tests import cell, marked

PLANTED = {
    **{what: kind for what, (kind, _) in test_run_checker.PLANTED.items()},
    **{what: kind for what, (kind, _) in test_check_judge.PLANTED.items()},
    **{what: kind for what, (kind, _) in test_consumer_judge.PLANTED.items()},
}
"""What is planted into clean histories, and the finding that it must lead to."""

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "faults.md"
COMMAND = ".venv/bin/python -m tests.support.fault_page"

_COLUMNS = "| where | fault | must happen | tests | not covered |\n| --- | --- | --- | --- | --- |\n"

_INVARIANTS = """
## Invariants, and how each was seen to fail

A check that never failed may check nothing. So tests plant each violation into a clean history, once for every place where the judge can find it, and fail if the judge finds
nothing (`tests/selftest/test_run_checker.py`, `test_check_judge.py` and `test_consumer_judge.py`). The last column names the [guards](guards.md) without which a simulated
cluster shows the finding, or another one in the row of its guard.

"""

_PROMISE = re.compile(r" \((P\d+)\)$")


class Row(NamedTuple):
    """One fault, as the page has it."""

    where: str
    what: str
    outcome: str
    """What must happen."""
    missing: str
    """What no test covers, and why."""

    @property
    def name(self) -> str:
        """What `pytest.mark.fault` calls it."""
        return f"{self.where}: {self.what}"


def page() -> str:
    """The whole page, with the tests that carry each fault's name."""
    found = marked("fault")
    rows = "".join(_line(row, found.get(row.name, ())) for row in faults())
    return _head() + _COLUMNS + rows + _INVARIANTS + "\n".join(_invariants()) + "\n"


def faults() -> list[Row]:
    """The rows of the page's table of faults."""
    _, _, rest = PAGE.read_text("utf-8").partition(_COLUMNS)
    cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in rest.partition("\n\n")[0].splitlines())
    return [Row(where, what, outcome, missing) for where, what, outcome, _, missing in cells]


def _head() -> str:
    return PAGE.read_text("utf-8").partition(_COLUMNS)[0]


def _line(row: Row, tests: Iterable[str]) -> str:
    return f"| {row.where} | {row.what} | {row.outcome} | {cell(tests)} | {row.missing} |\n"


def _invariants() -> Iterable[str]:
    yield "| finding | promise | what is wrong | planted violation | guards |"
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
