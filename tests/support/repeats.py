"""Tests that were made again for somebody else's fault: each is shown at the end of the run, and more than a few fail it."""

import pytest

from tests.support.seed import say

REPEATED = "made again"
REPEAT_COUNT_MAX = 3
"""Of one whole run. Somebody else's fault is met in one run of some ten; what is met more often is ours."""


def note_repeat(test: pytest.Item, why: str) -> None:
    """It begins anew. With several workers the report carries this to the one that counts."""
    say(f"{REPEATED}:", why)
    test.user_properties.append((REPEATED, why))


class Repeats:
    """Counts them, in the process that prints the results."""

    def __init__(self) -> None:
        self.told: list[str] = []

    @property
    def are_too_many(self) -> bool:
        """True when the run must not pass."""
        return len(self.told) > REPEAT_COUNT_MAX

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Every report of a test carries all that was noted; its last one is enough."""
        if report.when == "teardown":
            self.told += [f"{report.nodeid}: {why}" for name, why in report.user_properties if name == REPEATED]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Green tests do not make a green run of too many repeats."""
        if self.are_too_many and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line each."""
        if self.told:
            terminalreporter.section(f"{REPEATED}: {len(self.told)}, at most {REPEAT_COUNT_MAX}")
            for line in self.told:
                terminalreporter.write_line(line)
            if self.are_too_many:
                terminalreporter.write_line("too many: this run has failed", red=True)
