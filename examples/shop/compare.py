"""The comparison: the shop's database against both topics, read as anybody would read them. No txlayer in this file.

    python examples/shop/compare.py FOLDER --bootstrap-servers 127.0.0.1:9092

compares what `demo.py --keep FOLDER` left there with a broker that serves it; exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reading import Record, read_topics
from shop import CDS_PER_MONTH_MAX, DATABASE_FILE, LOYALTY, ORDERS, PURCHASES, Purchase, open_database, read_purchases
from sqlalchemy import select

EXAMPLES_MAX = 3
"""How many purchases a finding names."""


@dataclass(frozen=True)
class Finding:
    """Something that must not be."""

    where: str
    what: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """What was compared, and what differs."""

    accepted_count: int
    refused_count: int
    record_counts: dict[str, int]
    forward_ms: list[int]
    findings: list[Finding]

    @property
    def is_equal(self) -> bool:
        """True when nothing differs."""
        return not self.findings


def compare(database_file: Path, *, bootstrap_servers: str, purchases: list[Purchase]) -> Comparison:
    """Hold the database against the rule, and both topics against the database."""
    accepted, refused = judge(purchases)
    stored = stored_purchases(database_file)
    expected_values = {ORDERS: Purchase.order, LOYALTY: Purchase.loyalty}
    findings = list(compare_database(stored, accepted=accepted))
    topics = read_topics(bootstrap_servers, list(expected_values))
    for topic, value_of in expected_values.items():
        findings += compare_topic(topic, topics[topic], stored=stored, refused=refused, value_of=value_of)
    return Comparison(
        accepted_count=len(stored),
        refused_count=len(refused),
        record_counts={topic: len(records) for topic, records in topics.items()},
        forward_ms=[r.forward_ms for rs in topics.values() for r in rs if r.forward_ms is not None],
        findings=findings,
    )


def judge(purchases: Iterable[Purchase]) -> tuple[list[Purchase], set[int]]:
    """The purchases that the shop must accept, and the numbers of those it must refuse: the rule said a second time."""
    accepted: list[Purchase] = []
    refused: set[int] = set()
    sold: Counter[tuple[str, str]] = Counter()
    for purchase in purchases:
        month = (purchase.customer, purchase.month)
        if sold[month] + purchase.cds > CDS_PER_MONTH_MAX:
            refused.add(purchase.number)
        else:
            sold[month] += purchase.cds
            accepted.append(purchase)
    return accepted, refused


def stored_purchases(database_file: Path) -> list[Purchase]:
    """The database's rows in the order in which they were stored."""
    columns = [PURCHASES.c[name] for name in Purchase._fields]
    database = open_database(database_file)
    with database.connect() as connection:
        rows = connection.execute(select(*columns).order_by(PURCHASES.c.position))
        stored = [Purchase(*row) for row in rows]
    database.dispose()
    return stored


def compare_database(stored: list[Purchase], *, accepted: list[Purchase]) -> Iterable[Finding]:
    """The database holds the accepted purchases and no others, in the order of each customer."""
    is_, must = set(stored), set(accepted)
    yield from finding("database", "missing", [p.number for p in must - is_])
    yield from finding("database", "not to be there", [p.number for p in is_ - must])
    yield from finding("database", "customers out of order", _disorder(stored, accepted))


def compare_topic(
    topic: str,
    records: Sequence[Record],
    *,
    stored: list[Purchase],
    refused: set[int],
    value_of: Callable[[Purchase], bytes],
) -> Iterable[Finding]:
    """Every purchase of the database once, none of the refused, customers in order, and nothing else."""
    must = {purchase.number: purchase for purchase in stored}
    seen = Counter(record.number for record in records)
    known = [(r, must[r.number]) for r in records if r.number is not None and r.number in must]
    yield from finding(topic, "missing", must.keys() - seen.keys())
    yield from finding(topic, "more than once", [n for n in must if seen[n] > 1])
    yield from finding(topic, "refused and yet visible", refused & seen.keys())
    sold = must.keys() | refused
    unknown = [r.value.decode(errors="replace") for r in records if r.number not in sold]
    yield from finding(topic, "of no purchase", unknown)
    changed = [p.number for r, p in known if r.value != value_of(p) or r.key != p.customer]
    yield from finding(topic, "with other content", changed)
    partitions = Counter(customer for customer, _ in {(r.key, r.partition) for r in records})
    yield from finding(topic, "customers in two partitions", [c for c, n in partitions.items() if n > 1])
    # Records that were read twice are counted above; only its first position counts here.
    arrived = list({purchase.number: purchase for _, purchase in reversed(known)}.values())[::-1]
    yield from finding(topic, "customers out of order", _disorder(arrived, stored))


def _disorder(found: Iterable[Purchase], wanted: Iterable[Purchase]) -> list[str]:
    """Customers whose purchases, of those in both, stand in another order."""
    in_both = set(found := list(found)) & set(wanted := list(wanted))
    sequences = []
    for purchases in (found, wanted):
        by_customer = defaultdict(list)
        for purchase in purchases:
            if purchase in in_both:
                by_customer[purchase.customer].append(purchase.number)
        sequences.append(by_customer)
    is_, must = sequences
    return [customer for customer in must if is_[customer] != must[customer]]


def finding(where: str, what: str, those: Iterable[object]) -> Iterable[Finding]:
    """A finding when there are any, with some examples."""
    texts = sorted(str(one) for one in those)
    if texts:
        yield Finding(where, what, len(texts), tuple(texts[:EXAMPLES_MAX]))


def main() -> int:
    """Compare a folder that the demo kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what was given to demo.py --keep")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT")
    parser.add_argument("--purchases", type=int, metavar="N", help="as given to demo.py")
    arguments = parser.parse_args()
    if not (arguments.folder / DATABASE_FILE).is_file():
        parser.error(f"there is no {DATABASE_FILE} in {arguments.folder}")
    comparison = compare(
        arguments.folder / DATABASE_FILE,
        bootstrap_servers=arguments.bootstrap_servers,
        purchases=read_purchases(arguments.purchases),
    )
    for finding in comparison.findings:
        print(f"{finding.where}: {finding.count} {finding.what}, such as {', '.join(finding.examples)}")
    print(f"{comparison.accepted_count} purchases:", "equal" if comparison.is_equal else "DIFFERENT")
    return 0 if comparison.is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
