"""The loyalty service as its parent sees it: its process, its dead letters, and the operator who mends and replays."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from child import Child, ShopTroubleError
from coordinators import PROGRAM, environment
from points import GROUP, MENDED_FILE, POINTS_FILE
from reading import read_topics
from shop import ORDERS, Purchase

SERVICE = Path(__file__).with_name("loyalty.py")
DEAD_LETTERS = f"{GROUP}.{ORDERS}.dlq"
REPLAY_TIMEOUT_S = 60.0
CATCH_UP_MAX_S = 60.0
LOOK_S = 0.1


class RewardingService(Child):
    """One `loyalty.py` at a time; its figures are those of all of them together."""

    name = "the loyalty service"

    def __init__(self, *, bootstrap_servers: str, folder: Path, broken: str) -> None:
        super().__init__(
            [str(SERVICE), f"--bootstrap-servers={bootstrap_servers}", f"--folder={folder}", f"--broken={broken}"],
            log_file=folder / "loyalty.log",
        )
        self.broken = broken
        self._folder = folder
        self._bootstrap_servers = bootstrap_servers
        self._before: Counter[str] = Counter()
        self._told: Counter[str] = Counter()

    def open(self, *, dies_after: int | None) -> None:
        """Open it; what it tells is added to what those before it told."""
        self._before += self._told
        self._told = Counter()
        super().open(dies_after=dies_after)

    def take(self, told: dict[str, Any]) -> None:
        """What it did since it was opened."""
        self._told = Counter(told)

    @property
    def handled_count(self) -> int:
        """Orders whose points it wrote, as far as it told."""
        return self._before["handled"] + self._told["handled"]

    @property
    def again_count(self) -> int:
        """Orders that came again and found themselves in the inbox."""
        return self._before["again"] + self._told["again"]

    @property
    def failed_count(self) -> int:
        """Attempts that failed."""
        return self._before["failed"] + self._told["failed"]

    def catch_up(self, expected_count: int, *, tick: Callable[[], None]) -> bool:
        """Wait until so many entries are in its database; False when that takes too long."""
        give_up_at = time.monotonic() + CATCH_UP_MAX_S
        while self._entry_count() < expected_count:
            if time.monotonic() > give_up_at:
                return False
            tick()
            time.sleep(LOOK_S)
        return True

    def wait_for_dead_letters(self, expected_count: int, *, tick: Callable[[], None]) -> int:
        """How many there are, as soon as all are there that can be."""
        give_up_at = time.monotonic() + CATCH_UP_MAX_S
        while True:
            count = len(read_topics(self._bootstrap_servers, [DEAD_LETTERS])[DEAD_LETTERS])
            if count >= expected_count or time.monotonic() > give_up_at:
                return count
            tick()
            time.sleep(LOOK_S)

    def mend_and_replay(self) -> int:
        """Mend the account and ask for its dead letters, as an operator would; how many were handled then.

        Raises:
            ShopTroubleError: the command says that something is left.
        """
        (self._folder / MENDED_FILE).touch()
        answer = subprocess.run(  # noqa: S603 - our own program
            [
                *PROGRAM,
                "dlq",
                "replay",
                "--all",
                f"--group={GROUP}",
                f"--topic={ORDERS}",
                "--yes",
                "--wait=30s",
                f"--reason=the account of customer {self.broken} is mended",
                "--json",
                f"--bootstrap-servers={self._bootstrap_servers}",
            ],
            env=environment(),
            capture_output=True,
            check=False,
            timeout=REPLAY_TIMEOUT_S,
        )
        if answer.returncode or not answer.stdout:
            raise ShopTroubleError(f"the replay failed: {answer.stderr.decode() or answer.stdout.decode()}")
        return sum(row["result"] == "handled" for row in json.loads(answer.stdout))

    def _entry_count(self) -> int:
        database = sqlite3.connect(self._folder / POINTS_FILE)
        try:
            (count,) = database.execute("SELECT count(*) FROM entries").fetchone()
        except sqlite3.OperationalError:
            return 0  # it has made no table yet
        finally:
            database.close()
        return int(count)


def most_faithful(purchases: Iterable[Purchase]) -> str:
    """The customer with most purchases: the one whose account is broken."""
    ((customer, _),) = Counter(purchase.customer for purchase in purchases).most_common(1)
    return customer


def apply_group_topics(bootstrap_servers: str) -> None:
    """Create the topics for the loyalty service's dead letters and their replay.

    Raises:
        ShopTroubleError: they cannot be created.
    """
    answer = subprocess.run(  # noqa: S603 - our own program
        [
            *PROGRAM,
            "topics",
            "apply",
            f"--group={GROUP}",
            f"--topic={ORDERS}",
            f"--bootstrap-servers={bootstrap_servers}",
        ],
        env=environment(),
        capture_output=True,
        check=False,
    )
    if answer.returncode:
        raise ShopTroubleError(answer.stderr.decode())
