"""The second comparison: the loyalty programme's database against the shop's, by plain SQL. No txlayer and no Kafka in this file.

    python examples/shop/compare_points.py FOLDER

compares what `demo.py --keep FOLDER` left there; exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from compare import Finding, finding
from points import POINTS_FILE
from shop import DATABASE_FILE

WHERE = "points"


@dataclass(frozen=True)
class PointsComparison:
    """What was compared, and what differs."""

    customer_count: int
    entry_count: int
    point_count: int
    findings: list[Finding]


def compare_points(shop_file: Path, points_file: Path) -> PointsComparison:
    """The points of each customer, each order once, each customer's orders in order."""
    sold = _rows(shop_file, "SELECT customer, number FROM purchases ORDER BY position")
    due = dict(_rows(shop_file, "SELECT customer, sum(cents / 100) FROM purchases GROUP BY customer"))
    entries = _rows(points_file, "SELECT customer, number FROM entries ORDER BY position")
    given = dict(_rows(points_file, "SELECT customer, sum(points) FROM entries GROUP BY customer"))
    return PointsComparison(
        customer_count=len(given),
        entry_count=len(entries),
        point_count=sum(given.values()),
        findings=list(_findings(sold, due, entries, given)),
    )


def _findings(
    sold: list[tuple[str, int]], due: dict[str, int], entries: list[tuple[str, int]], given: dict[str, int]
) -> Iterator[Finding]:
    customers = due.keys() | given.keys()
    yield from finding(WHERE, "customers with other points", [c for c in customers if due.get(c) != given.get(c)])
    times = Counter(number for _, number in entries)
    yield from finding(WHERE, "orders missing", {number for _, number in sold} - times.keys())
    yield from finding(WHERE, "orders more than once", [n for n, count in times.items() if count > 1])
    is_, must = _by_customer(entries), _by_customer(sold)
    yield from finding(WHERE, "customers out of order", [c for c in must if _disordered(is_[c], must[c])])


def _by_customer(rows: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for customer, number in rows:
        numbers[customer].append(number)
    return numbers


def _disordered(found: list[int], wanted: list[int]) -> bool:
    """True when those in both stand in another order; what is missing or there twice is told elsewhere."""
    in_both = set(found) & set(wanted)
    return list(dict.fromkeys(n for n in found if n in in_both)) != [n for n in wanted if n in in_both]


def _rows(file: Path, query: str) -> list[tuple[str, int]]:
    database = sqlite3.connect(file)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


def main() -> int:
    """Compare a folder that the demo kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what was given to demo.py --keep")
    folder = parser.parse_args().folder
    for name in (DATABASE_FILE, POINTS_FILE):
        if not (folder / name).is_file():
            parser.error(f"there is no {name} in {folder}")
    found = compare_points(folder / DATABASE_FILE, folder / POINTS_FILE)
    for one in found.findings:
        print(f"{one.where}: {one.count} {one.what}, such as {', '.join(one.examples)}")
    print(f"{found.entry_count} orders:", "DIFFERENT" if found.findings else "equal")
    return 1 if found.findings else 0


if __name__ == "__main__":
    sys.exit(main())
