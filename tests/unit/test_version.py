"""`txlayer --version`, and the public names of `txlayer.testing`."""

import pytest

import txlayer
import txlayer.testing
from tests.support.commands import run_command
from txlayer.cli.main import build_app


def test_the_command_says_its_version_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_command(build_app(), "--version", capsys=capsys)

    assert (0, f"txlayer {txlayer.__version__}\n", "") == answer


@pytest.mark.parametrize("name", txlayer.testing.__all__)
def test_every_public_name_of_testing_is_there(name: str) -> None:
    assert getattr(txlayer.testing, name) is not None
    assert name in dir(txlayer.testing)


def test_an_unknown_name_of_testing_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        txlayer.testing.nonsense  # noqa: B018 - the access is the subject
