"""Which nightly tests a run takes: all, none, only these, or one share of them (`make nightly`, `make test`, `.ci/run`)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Choice:
    """What `--nightly` says. A share holds every n-th test function: the cases of one function share a slow fixture."""

    word: str
    share: int = 0
    shares: int = 0

    @classmethod
    def of(cls, text: str) -> Choice:
        """`all`, `none`, `only`, or `3/20` for the third of twenty shares."""
        if text in ("all", "none", "only"):
            return cls(text)
        share, _, shares = text.partition("/")
        if not (share.isdecimal() and shares.isdecimal() and 1 <= int(share) <= int(shares)):
            raise pytest.UsageError(f"--nightly {text!r} is not all, none, only or a share such as 3/20")
        return cls("share", int(share), int(shares))

    def takes(self, test: str, nightly: AbstractSet[str]) -> bool:
        """True when a run with this choice runs the test; `nightly` are the ids of all nightly tests."""
        if test not in nightly:
            return self.word != "only"
        if self.word != "share":
            return self.word != "none"
        functions = sorted({_function(one) for one in nightly})
        return functions.index(_function(test)) % self.shares == self.share - 1


def _function(test: str) -> str:
    return test.partition("[")[0]
