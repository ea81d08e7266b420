"""What every whole-system test needs: coordinators that end with their test."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.support.arena import Arena
from tests.support.processes import CoordinatorProcess

Start = Callable[..., CoordinatorProcess]

SESSION_S = 1.5
"""Short, so that twenty crashes fit into a minute; the rule of the group is the same as with the default of 6 s."""


@pytest.fixture
def start_coordinator(tmp_path: Path) -> Iterator[Start]:
    """Start a coordinator on an arena; it is killed at the end of the test at the latest."""
    numbers = count()
    with ExitStack() as stack:

        def start(
            arena: Arena, *arguments: str, settings: Mapping[str, str] | None = None, module: str = "txlayer"
        ) -> CoordinatorProcess:
            log_file = tmp_path / f"coordinator-{next(numbers)}.log"
            given = {"session_timeout": f"{SESSION_S}s", **(settings or {})}
            return stack.enter_context(
                CoordinatorProcess(
                    arena.servers,
                    arena.namespace,
                    log_file=log_file,
                    arguments=arguments,
                    settings=given,
                    module=module,
                )
            )

        yield start
