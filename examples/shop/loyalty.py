"""The loyalty service as a process of its own: consumes `orders`, tells its parent how it goes, and can be killed at any time.

    python loyalty.py --bootstrap-servers HOST:PORT --folder DIR --broken CUSTOMER --opening N [--dies-after N]

Each customer's orders are handled in order, retries included; a customer whose orders never succeed is parked in the
dead letters, and the others go on. It ends when its standard input does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from datetime import timedelta
from pathlib import Path

from points import GROUP, MENDED_FILE, POINTS_FILE, Loyalty, open_points
from shop import ORDERS

from txlayer import AfterExhausted, Context, OrderedConsumer, ReceivedMessage, RetryPolicy

# The hiccups of this demo are over soon; the default waits for hours, as a real outage asks for.
RETRY = RetryPolicy(
    attempt_count_max=4,
    backoff_first=timedelta(milliseconds=50),
    backoff_max=timedelta(milliseconds=400),
    after_exhausted=AfterExhausted.PARK,
)
TELL_S = 0.1


class Journal:
    """How it goes: told to the parent, and the moment of death counted."""

    def __init__(self, *, dies_after: int | None) -> None:
        self._dies_after = dies_after
        self._counts = {"handled": 0, "again": 0, "failed": 0}
        self._lock = threading.Lock()

    def handled(self, *, is_new: bool) -> None:
        """A local transaction is committed, and Kafka knows nothing of it: the worst moment for kill -9."""
        self._counts["handled" if is_new else "again"] += 1
        if self._counts["handled"] == self._dies_after:
            self.tell()
            os.kill(os.getpid(), signal.SIGKILL)

    def failed(self) -> None:
        """An attempt has failed."""
        self._counts["failed"] += 1

    def tell(self) -> None:
        """One line for the parent."""
        with self._lock:
            print(json.dumps(self._counts), flush=True)


def run(wishes: argparse.Namespace) -> None:
    """Handle orders until nobody wants it any more."""
    database = open_points(wishes.folder / POINTS_FILE)
    loyalty = Loyalty(database, broken=wishes.broken, mended=wishes.folder / MENDED_FILE)
    journal = Journal(dies_after=wishes.dies_after)
    # Under the same instance id it has its partitions back at once when it is started again. One worker: see Loyalty.
    consumer = OrderedConsumer(
        bootstrap_servers=wishes.bootstrap_servers,
        group=GROUP,
        topics=[ORDERS],
        start_at="earliest",
        retry=RETRY,
        worker_count=1,
        instance_id="loyalty-1",
    )

    @consumer.handler
    def add_points(message: ReceivedMessage, context: Context) -> None:
        try:
            is_new = loyalty.add_points(message, context)
        except Exception:
            journal.failed()
            raise
        journal.handled(is_new=is_new)

    is_over = threading.Event()
    threading.Thread(target=_tell, args=(journal, is_over), daemon=True).start()
    with consumer:
        _wait_for_end_of_input(consumer)
    is_over.set()
    journal.tell()
    database.dispose()


def _tell(journal: Journal, is_over: threading.Event) -> None:
    while not is_over.wait(TELL_S):
        journal.tell()


def _wait_for_end_of_input(consumer: OrderedConsumer) -> None:
    ended = threading.Event()

    def read() -> None:
        while os.read(0, 4096):
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    while consumer.is_running and not ended.wait(TELL_S):
        pass


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--broken", required=True, metavar="CUSTOMER")
    parser.add_argument("--opening", required=True, type=int)
    parser.add_argument("--dies-after", type=int, help="SIGKILL itself after so many local commits")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
