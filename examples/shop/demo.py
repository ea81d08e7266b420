"""A shop on 69,659 real purchases: database and Kafka stay equal while coordinators, shop and loyalty service are killed.

Starts a real Kafka, two coordinators, the shop and its loyalty service, and sells every purchase of the public CDNOW data
set (each one a row in SQLite and two messages, or nothing). The loyalty service handles the orders in another database;
now and then it fails, and one customer's account is broken: those orders become dead letters, and are replayed when it is
mended. Each coordinator is killed once with SIGKILL on the way, the shop three times, between a local commit and its
resolution, and the loyalty service once, between a local commit and its stored offset. At the end the shop's database is
compared with both topics and with the points, and Spark reads every topic and judges each transaction in a report. Exit
code 0: equal, and no promise is broken; 1: something differs or is broken; 2: it could not run. Begin reading in shop.py,
then points.py.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from audit import PAGE_FILE, Auditor, AuditTroubleError
from bad_day import BadDay
from child import ShopTroubleError
from compare import compare, stored_purchases
from compare_points import compare_points
from confluent_kafka import KafkaException
from coordinators import COORDINATOR_COUNT, Console, Coordinators, CoordinatorTroubleError, apply_topics
from points import POINTS_FILE
from reading import Watcher, create_topics, read_checks
from rewarding import RewardingService, apply_group_topics, most_faithful
from selling import SellingShop
from shop import DATABASE_FILE, LOYALTY, ORDERS, Purchase, read_purchases
from show import Percentiles, Report, Rewards, Show

from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.errors import TxLayerError

PURCHASES_MIN = 1_000
"""Fewer are over before a coordinator can be killed in the middle."""
TICK_S = 0.1
AUDITOR_COMES_AT = 0.75
"""Share of the purchases: Spark takes what others leave of the cores, and has read most when all are sold."""
SETTLING_MAX_S = 60.0
"""Nobody is asked about a transaction for 6 s, and a dead coordinator is noticed after 6 s; the rest is catching up."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo as the command line says; the exit code."""
    wishes = parse(arguments)
    purchases = read_purchases(wishes.purchases)
    signal.signal(signal.SIGTERM, _stop)
    show = Show(as_json=wishes.json)
    folder = wishes.keep or Path(tempfile.mkdtemp(prefix="txlayer-demo-"))
    is_wanted = wishes.keep is not None
    try:
        report = run(purchases, folder=folder, seed=wishes.seed, show=show, has_console=wishes.console)
        is_wanted = is_wanted or not report.is_good
    except (
        TxLayerError,
        AuditTroubleError,
        CoordinatorTroubleError,
        ShopTroubleError,
        KafkaException,
        TimeoutError,
    ) as exc:
        show.tell(f"[red]error:[/] {exc}")
        is_wanted = True
        return 2
    except KeyboardInterrupt:
        show.tell("stopped")
        return 130
    else:
        return 0 if report.is_good else 1
    finally:
        if is_wanted:
            show.tell(f"database, logs and Kafka's data are in {folder}")
        else:
            clear(folder)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; what cannot be is said and ends the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--purchases", type=int, metavar="N", help=f"only the first N of the file, at least {PURCHASES_MIN}"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(10_000),
        metavar="N",
        help="decides when who is killed; drawn and shown when it is not given",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="an empty or new folder for database, logs and Kafka's data"
    )
    parser.add_argument(
        "--console",
        action="store_true",
        help="show the day in a browser, too, and leave it open at the end until Ctrl-C",
    )
    wishes = parser.parse_args(arguments)
    if wishes.purchases is not None and wishes.purchases < PURCHASES_MIN:
        parser.error(f"--purchases: at least {PURCHASES_MIN}, or they are over before anything can be killed")
    if wishes.keep is not None:
        wishes.keep.mkdir(parents=True, exist_ok=True)
        if any(wishes.keep.iterdir()):
            parser.error(f"--keep: {wishes.keep} is not empty")
    return wishes


def clear(folder: Path) -> None:
    """End all that a good day left, but for the report."""
    kept = {PAGE_FILE, Path(PAGE_FILE).with_suffix(".json").name}
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in kept:
            path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()  # it was over before there was a report


def run(  # the whole day from morning to evening, in one piece
    purchases: list[Purchase], *, folder: Path, seed: int, show: Show, has_console: bool
) -> Report:
    """The whole demo; everything that it starts has ended when it returns or raises."""
    database_file = folder / DATABASE_FILE
    # Not performance=True: within a minute the second compiler takes more time than it saves.
    with LocalBroker(data=folder / "kafka", config=LocalConfig.from_environ(os.environ)) as broker:
        servers = broker.bootstrap_servers
        show.tell(f"Kafka is ready at {servers}")
        create_topics(servers, [ORDERS, LOYALTY])
        together(partial(apply_topics, servers), partial(apply_group_topics, servers))
        with (
            Coordinators(bootstrap_servers=servers, log_folder=folder) as coordinators,
            SellingShop(
                bootstrap_servers=servers, database_file=database_file, log_folder=folder, purchase_count=len(purchases)
            ) as shop,
            RewardingService(bootstrap_servers=servers, folder=folder, broken=most_faithful(purchases)) as loyalty,
            Auditor(bootstrap_servers=servers, folder=folder) as auditor,
            Console(bootstrap_servers=servers, log_folder=folder) as console,
        ):
            if has_console:
                show.tell(f"the console shows it at {console.open()}")
            bad_day = BadDay(coordinators, shop, loyalty, purchase_count=len(purchases), seed=seed, tell=show.tell)
            opened = time.monotonic()
            bad_day.open_shop()
            show.tell("the shop opens, 200 customers at a time")
            coordinators.wait_until_ready()  # until then its messages wait
            bad_day.open_loyalty()
            with Watcher(servers, ORDERS) as watcher, show.progress(len(purchases)) as on_progress:

                def tick() -> None:
                    seen = watcher.visible_count
                    on_progress(shop.accepted_count, shop.refused_count, seen)
                    bad_day.go_on(visible_count=seen)

                while not shop.is_sold_out:
                    tick()
                    if not auditor.is_open and shop.sold_count > AUDITOR_COMES_AT * len(purchases):
                        auditor.open()  # what comes after this it reads at the end
                    time.sleep(TICK_S)
                closed = time.monotonic()
                settling_s = settle(coordinators, watcher, tick=tick, database_file=database_file)

                def close() -> None:
                    together(loyalty.close, shop.close, coordinators.stop)
                    # Nothing is forwarded any more, so the topics will not change.
                    auditor.begin()

                rewards = reward(loyalty, tick=tick, close=close, folder=folder, show=show)
            with show.working("Spark reads the rest of all topics and judges each transaction"):
                # Beside it: neither knows what the other one finds.
                comparison = compare(database_file, bootstrap_servers=servers, purchases=purchases)
                checks = read_checks(servers)
                judged = auditor.judge()
            report = Report(
                purchase_count=len(purchases),
                seed=seed,
                kills=bad_day.kills,
                checks=checks,
                selling_s=closed - opened,
                settling_s=settling_s,
                whole_s=show.elapsed_s - judged.took_s,
                buying=Percentiles.of(shop.took_ms),
                forwarding=Percentiles.of(comparison.forward_ms),
                comparison=comparison,
                rewards=rewards,
                audit=judged,
            )
            show.result(report)
            if has_console:
                for number in range(COORDINATOR_COUNT):
                    coordinators.restart(number)
                show.tell(f"all of it is still open at {console.address}; Ctrl-C ends it")
                with suppress(KeyboardInterrupt):
                    threading.Event().wait()
    return report


def together(*works: Callable[[], object]) -> None:
    """Do them at the same time: each waits for other processes."""
    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(work) for work in works]:
            done.result()


def reward(
    loyalty: RewardingService, *, tick: Callable[[], None], close: Callable[[], None], folder: Path, show: Show
) -> Rewards:
    """Let the loyalty service catch up, mend the broken account, replay its dead letters, close, and compare."""
    began = time.monotonic()
    stored = stored_purchases(folder / DATABASE_FILE)
    broken_count = sum(purchase.customer == loyalty.broken for purchase in stored)
    has_caught_up = loyalty.catch_up(len(stored) - broken_count, tick=tick)
    dead_letter_count = loyalty.wait_for_dead_letters(broken_count, tick=tick)
    show.tell(f"{dead_letter_count} dead letters of customer {loyalty.broken}: mended, now replayed")
    replayed_count = loyalty.mend_and_replay()
    took_s = time.monotonic() - began
    close()
    return Rewards(
        handled_count=loyalty.handled_count,
        again_count=loyalty.again_count,
        failed_count=loyalty.failed_count,
        broken=loyalty.broken,
        dead_letter_count=dead_letter_count,
        replayed_count=replayed_count,
        is_complete=has_caught_up and replayed_count == dead_letter_count == broken_count,
        took_s=took_s,
        comparison=compare_points(folder / DATABASE_FILE, folder / POINTS_FILE),
    )


def settle(
    coordinators: Coordinators, watcher: Watcher, *, tick: Callable[[], None], database_file: Path
) -> float | None:
    """Seconds until nothing is undecided and all is carried out; None when that takes too long."""
    closed = time.monotonic()
    accepted_count = len(stored_purchases(database_file))
    while time.monotonic() - closed < SETTLING_MAX_S:
        tick()
        # Asking the coordinators' group starts programs: look first whether it can be over.
        if watcher.visible_count >= accepted_count and coordinators.have_settled():
            return time.monotonic() - closed
        time.sleep(TICK_S)
    return None


def _stop(_number: int, _frame: object) -> None:
    # As Ctrl-C: whatever was started is ended on the way out.
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
