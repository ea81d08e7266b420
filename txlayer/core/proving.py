"""Verdicts → what is proved of each promise, and what refutes it. Pure; bounded by the findings that are kept.

Counts alone grow with the window: of a million transactions that are well nothing is remembered.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from txlayer.core.judging import Judged
from txlayer.core.messages import Origin
from txlayer.core.verdicts import Promise, Severity, Verdict, broken_promises, severity

_WORSE = (Verdict.LEAKED, Verdict.DUPLICATE, Verdict.TORN, Verdict.CORRUPT, Verdict.OUT_OF_ORDER)
"""Verdicts that stay when the order of a key turns out to be wrong, too."""


class Finding(NamedTuple):
    """One transaction whose verdict is a fault or worth a look."""

    verdict: Verdict
    txn_id: str
    nonce: str
    place: Origin
    detail: str
    promises: tuple[Promise, ...]
    """Those that it refutes; empty for a warning."""


class PromiseStatus(NamedTuple):
    """What the window says of one promise."""

    promise: Promise
    proved_count: int
    """Transactions that could have broken it and did not."""
    refuted_count: int
    undecidable_count: int
    """Transactions at the window's edges: older than what was read, or too young."""

    @property
    def word(self) -> str:
        """proved, refuted, undecidable (only what is at the edge was found) or nothing to judge."""
        if self.refuted_count:
            return "refuted"
        if self.proved_count:
            return "proved"
        return "undecidable" if self.undecidable_count else "nothing to judge"


@dataclass(slots=True)
class Proof:
    """Takes judged attempts one by one."""

    finding_count_max: int = 10_000
    """Findings kept; the rest is counted."""
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0
    _proved: Counter[Promise] = field(default_factory=Counter)
    _refuted: Counter[Promise] = field(default_factory=Counter)
    _undecidable: Counter[Promise] = field(default_factory=Counter)

    def add(self, judged: Judged) -> None:
        """One attempt."""
        verdict = judged.verdict
        self.verdicts[verdict] += 1
        if verdict is Verdict.OUT_OF_WINDOW:
            self._undecidable.update(Promise)
            return  # no finding: every window has an edge
        broken = broken_promises(verdict, is_rolled_back=judged.is_rolled_back)
        self._refuted.update(broken)
        if judged.is_on_its_way:
            self._undecidable.update((Promise.P1, Promise.P5))
        for promise in _touched(judged):
            if promise not in broken:
                self._proved[promise] += 1
        if severity(verdict) is not Severity.GOOD:
            self._keep(judged, broken)

    def add_late(self, finding: Finding, *, before: Verdict) -> None:
        """An attempt that was judged `before`, and whose order is wrong: the worse of the two verdicts counts."""
        self._refuted[Promise.P6] += 1
        self._proved[Promise.P6] -= 1
        if before not in _WORSE:
            self.verdicts[before] -= 1
            self.verdicts[Verdict.OUT_OF_ORDER] += 1
        self._append(finding)

    def statuses(self) -> list[PromiseStatus]:
        """One per promise."""
        return [
            PromiseStatus(p, self._proved[p], self._refuted[p], self._undecidable[p])
            for p in Promise
        ]

    @property
    def is_refuted(self) -> bool:
        """True when a promise is broken."""
        return any(self._refuted.values())

    @property
    def transaction_count(self) -> int:
        """Everything that got a verdict."""
        return self.verdicts.total()

    def _keep(self, judged: Judged, broken: tuple[Promise, ...]) -> None:
        self._append(
            Finding(
                judged.verdict, judged.txn_id, judged.nonce, judged.place, judged.detail, broken
            )
        )

    def _append(self, finding: Finding) -> None:
        self.finding_count += 1
        if len(self.findings) < self.finding_count_max:
            self.findings.append(finding)
        elif finding.promises:
            # A fault is worth more than a warning that stands before it.
            self._displace_warning(finding)

    def _displace_warning(self, finding: Finding) -> None:
        for number in range(len(self.findings) - 1, -1, -1):
            if not self.findings[number].promises:
                self.findings[number] = finding
                return


def _touched(judged: Judged) -> tuple[Promise, ...]:
    """The promises that this transaction could have broken."""
    touched = [Promise.P3]
    is_visible = judged.visible_count > 0
    if judged.is_committed and not judged.is_on_its_way:
        touched.append(Promise.P1)
    if is_visible:
        touched.append(Promise.P2)
        if not judged.is_on_its_way:
            touched.append(Promise.P5)
    if judged.is_committed or judged.is_rolled_back:
        touched.append(Promise.P4)
    if judged.order_marks:
        touched.append(Promise.P6)
    return tuple(touched)
