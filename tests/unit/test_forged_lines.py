"""What anybody may have written into a topic cannot forge a line, a field, a label, or move a terminal's cursor."""

import io
import json
import logging
import re
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from txlayer.adapters.exposition import MetricsServer
from txlayer.adapters.telemetry import Health, JsonFormatter, Log, Sample, TextFormatter, counter
from txlayer.cli import locks, output
from txlayer.cli.exits import guard
from txlayer.config import MetricsConfig
from txlayer.core.leases import QueueLease
from txlayer.errors import UsageError
from txlayer.operate.queues import LeaseStatus, LockState

FORGERIES = [
    "g\r2026-11-23T12:00:00.000Z ERROR   transaction.lost",
    "g\n2026-11-23T12:00:00.000Z ERROR   transaction.lost",
    "g\x0b\x0c\x1c\x85\u2028\u2029end",
    "g\x1b[2K\x1b[1A\x9b31m\x07\x08\x7f",
    "g\u202etxet\u2066",
    "g\udcff",
]
UNSEEN = re.compile(r"[^\x20-\x7e]")
SENT = counter("txlayer_sent_total", "What was sent.", "group")


def record(*, message: str = "check.sent", **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("txlayer.coordinator", logging.INFO, "", 0, message, (), None)
    made.__dict__.update(fields)
    return made


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("where", ["field", "message", "traceback"])
def test_a_log_line_stays_one_line(formatter: logging.Formatter, forgery: str, where: str) -> None:
    made = record(group=forgery) if where == "field" else record(message=forgery)
    if where == "traceback":
        made = record()
        try:
            raise UsageError(forgery)
        except UsageError:
            made.exc_info = sys.exc_info()

    first, *more = formatter.format(made).split("\n")

    assert not UNSEEN.search("".join([first, *more]))
    assert bool(more) == (where == "traceback" and isinstance(formatter, TextFormatter))
    assert all(line.startswith("  ") for line in more)


def test_json_gives_the_value_back() -> None:
    line = json.loads(JsonFormatter().format(record(group=FORGERIES[0])))

    assert FORGERIES[0] == line["group"]


def test_a_value_cannot_pretend_to_be_further_fields() -> None:
    line = TextFormatter().format(record(group='a level=ERROR reason="x', count=3))

    assert line.endswith(r'check.sent group="a level=ERROR reason=\"x" count=3')


class Observed:
    """Figures of groups with these names."""

    def __init__(self, groups: list[str]) -> None:
        self._groups = groups

    def samples(self) -> list[Sample]:
        """One of each."""
        return [Sample(SENT, number, (group,)) for number, group in enumerate(self._groups)]

    def health(self) -> Health:
        """Good."""
        return Health("", "")


def test_labels_of_metrics_hold_nothing_that_a_terminal_obeys_and_stay_apart() -> None:
    groups = [*FORGERIES, r"g\x1b", "g\x1b", "g"]

    body = MetricsServer(MetricsConfig(), Observed(groups)).metrics_page()

    page = body.decode("utf-8")
    assert not UNSEEN.search(page.replace("\n", ""))
    found = [
        sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == SENT.name
    ]
    assert len(groups) == len({sample.labels["group"] for sample in found})
    assert list(range(len(groups))) == [sample.value for sample in found]


@pytest.mark.parametrize("forgery", FORGERIES)
def test_an_error_and_a_defect_show_no_control_characters(forgery: str, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise UsageError(f"group {forgery}")

    def fail() -> None:
        raise ZeroDivisionError(forgery)

    for call in (refuse, fail):
        guard(call)
        lines = capsys.readouterr().err.rstrip("\n").split("\n")
        assert not any(UNSEEN.search(line) for line in lines)
        assert all(line.startswith(("  ", "error: ")) for line in lines)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_cells_and_sentences_of_commands_show_no_control_characters(forgery: str) -> None:
    console = Console(file=io.StringIO(), width=240)
    made = output.rows_table([{"group": forgery}], {"group": "group"}, title=forgery)

    with console.capture() as caught:
        console.print(made)

    assert "\x1b" not in caught.get()
    assert "\r" not in caught.get()
    assert "\u202e" not in caught.get()
    lease = QueueLease("g/t/0", forgery, "i", 1, 2, 3, 4)
    for state in (LockState.HELD, LockState.RELEASED):
        assert not UNSEEN.search(locks.sentence(LeaseStatus(lease, state, 5, 6)))


class Interrupted(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - the base's
        raise KeyboardInterrupt


def test_an_interruption_of_the_main_thread_ends_no_log_line_unheard(caplog: pytest.LogCaptureFixture) -> None:
    log = Log("txlayer.interrupted")
    log.logger.addHandler(handler := Interrupted())

    with pytest.raises(KeyboardInterrupt):
        log.warning("check.sent")
    log.logger.removeHandler(handler)
    log.warning("check.sent")

    assert ["test_an_interruption_of_the_main_thread_ends_no_log_line_unheard"] == [r.funcName for r in caplog.records]
