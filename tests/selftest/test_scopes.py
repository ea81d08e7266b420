"""Which tests share a worker: those that share a server or a session, and no others."""

import ast
from pathlib import Path

from tests.conftest import APART, PUBLISHING, SHARING_FOLDERS, _scope

TESTS = Path(__file__).resolve().parents[1]


def test_a_folder_that_shares_something_is_one_scope_and_every_other_file_is_its_own() -> None:
    assert "spark" == _scope("spark/test_ledger.py")
    assert {_scope("spark/test_sink.py")} == {_scope(file) for file in PUBLISHING} != {"spark"}
    assert "integration/sql" == _scope("integration/sql/test_inbox.py")
    assert "spark/test_cluster.py" == _scope("spark/test_cluster.py")
    assert "unit/test_codec.py" == _scope("unit/test_codec.py")


def test_a_file_that_is_apart_asks_for_no_shared_session() -> None:
    for file in APART:
        assert file.rpartition("/")[0] in SHARING_FOLDERS
        asked = {node.arg for node in ast.walk(ast.parse((TESTS / file).read_bytes())) if isinstance(node, ast.arg)}
        assert "spark" not in asked, file
