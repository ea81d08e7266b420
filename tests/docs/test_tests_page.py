"""The page on the tests lists the stages that `make nightly` has, with their bounds."""

import re

from tests.nightly import STAGES
from tests.support.pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "tests.md"


def test_the_page_has_every_stage_with_what_runs_and_its_bound() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \| (\d+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)

    assert rows == [(one.name, one.shows, f"{one.minutes_max:g}") for one in STAGES]
