"""The code of docs/howto/memory-kafka.md runs as it stands, and the names in its table exist."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.programs import run_program
from txlayer.adapters.errors import Code
from txlayer.adapters.memory import Fault, FaultPlan, MemoryKafka

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "memory-kafka.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_has_programs() -> None:
    assert 3 == len(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_runs_without_the_kafka_client(program: str, tmp_path: Path) -> None:
    program += "\nimport sys\nassert 'confluent_kafka' not in sys.modules\n"

    ran = run_program(
        [sys.executable, "-W", "error", "-c", program],
        within=60,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )

    assert (0, "") == (ran.returncode, ran.stderr)


def test_every_name_of_the_table_exists() -> None:
    faults, kafka = FaultPlan(), MemoryKafka()

    assert set() == set(re.findall(r"Fault\.([A-Z_]+)", PAGE)) - set(Fault.__members__)
    assert [] == [n for n in re.findall(r"faults\.(\w+)", PAGE) if not hasattr(faults, n)]
    assert [] == [n for n in re.findall(r"`kafka\.(\w+)", PAGE) if not hasattr(kafka, n)]
    assert set(re.findall(r'refuse\("\w+", "(\w+)"', PAGE)) <= set(Code.__members__)
