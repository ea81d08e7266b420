"""Real `txlayer responder run` processes, in a folder where their handlers are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import TxlayerProcess


class ResponderProcess(TxlayerProcess):
    """One of them; it is killed where its block ends."""

    def __init__(
        self,
        servers: str,
        namespace: str,
        group: str,
        *,
        folder: Path,
        name: str,
        arguments: Sequence[str] = (),
        **given: Any,
    ) -> None:
        """It runs in `folder`; its log is `name`.log there. `given` as in `TxlayerProcess`."""
        command = ["responder", "run", "-b", servers, "-n", namespace, "--group", group, *arguments]
        log_file = folder / f"{name}.log"
        super().__init__(command, log_file=log_file, folder=folder, **given)
