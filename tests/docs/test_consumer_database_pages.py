"""The programs of docs/howto/inbox.md and docs/howto/locks.md run as they stand."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "howto"

RUN_HANDLER = """
from tests.support.handled import HandledMessage

class Message(HandledMessage):
    key = b"customer-7"

with engine.begin() as connection:
    connection.execute(text("CREATE TABLE account (customer VARCHAR(40), points INTEGER)"))
    connection.execute(text("INSERT INTO account VALUES ('customer-7', 0)"))
for offset in (1, 2, 2, 1):
    add_points(Message(offset=offset), None)
with engine.connect() as connection:
    print(connection.execute(text("SELECT points FROM account")).scalar_one())
engine.dispose()
"""


@pytest.mark.parametrize(
    ("page", "more", "said"), [("inbox.md", RUN_HANDLER, "2"), ("locks.md", "engine.dispose()", "stale: 17 newest: 29")]
)
def test_the_program_of_the_page_runs(page: str, more: str, said: str, tmp_path: Path) -> None:
    text = (PAGES / page).read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)

    ran = run_program(
        [sys.executable, "-W", "error", "-c", f"{program}\n{more}"],
        within=60,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )

    assert (0, "", said) == (ran.returncode, ran.stderr, ran.stdout.strip())
