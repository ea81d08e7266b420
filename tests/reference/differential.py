"""The judges held against each other on random histories. A disagreement is a fault, whoever of them is wrong.

    make differential HISTORIES=10000 SEED=1

judges as many fresh ones, prints each disagreement with the seed that shows it again, and ends with 1 when there was one.
"""

import argparse
import secrets
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from tests.reference.histories import Made, make, seeds
from tests.reference.model import BROKEN_HEADERS, VERDICTS, Kind, Report, Transaction, judge, verdict
from tests.reference.verified import Admin, Cluster, verified
from tests.reference.wire import History, Record, parse_half, parse_origin
from tests.support.checker import Judge
from tests.support.checker import Kind as Fault
from tests.support.history import Logs
from tests.support.logs import Seen
from txlayer.operate.verify import MARGIN_MS, WantedWindow

#: Later than everything in a history: all of it is old enough to be judged.
NOW_MS = 1_800_000_000_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
#: A history is judged again within so long, when some of it is young.
SOON_MS = 75_000


def disagreements(made: Made) -> list[str]:
    """What `txlayer verify`, or the judge of simulation and chaos, says otherwise than the model."""
    newest_ms = max((r.timestamp_ms for r in made.history.records if r.is_append_time), default=NOW_MS)
    soon_ms = newest_ms + made.seed % SOON_MS
    return [
        *with_verify(made),
        *with_verify(made, now_ms=soon_ms),
        *with_window(made),
        *with_window(made, now_ms=newest_ms + HOUR_MS),
        *with_end(made),
        *with_simulation(made),
    ]


def with_simulation(made: Made) -> list[str]:
    """That judge is told of no retention, of no Kafka transaction and of no kind of timestamps."""
    if not (made.is_whole and all(record.is_append_time for record in made.history.records)):
        return []
    history = as_it_reads(made.history)
    wanted = {finding.txn_key or "" for finding in judge(history).broken}
    return [
        f"{key or 'a record of nobody'}: the model and the simulation's judge differ"
        for key in sorted(wanted ^ broken_keys(history))
    ]


def as_it_reads(history: History) -> History:
    """Only what `read_committed` readers see, of a doubt topic of which nothing was removed."""
    settings = replace(history.settings, compacted_topics=frozenset(), former_partition_counts={})
    committed = [record for record in history.records if record.kafka == "committed"]
    return replace(history, records=committed, settings=settings)


def broken_keys(history: History) -> set[str]:
    """The id/nonce of every transaction that breaks a promise, as the judge of simulation and chaos says; empty for a record that belongs to no transaction."""
    by_topic: dict[str, list[Seen]] = {topic: [] for topic, _ in history.bounds}
    for r in sorted(history.records, key=lambda r: r.log_order):
        seen = Seen(r.topic, r.partition, r.offset, r.key, r.value, list(r.headers), r.timestamp_ms)
        by_topic[r.topic].append(seen)
    names = [f"{history.settings.namespace}.{name}" for name in ("half", "op", "doubt")]
    half, op, doubt = (by_topic.pop(name) for name in names)
    counts = Counter(topic for topic, _ in history.bounds)
    real = [seen for found in by_topic.values() for seen in found]
    judge = Judge(Logs(half, op, doubt, real, counts), partition_count=counts[names[0]])
    findings = judge.verdict().findings
    return {finding.txn_key for finding in findings if finding.kind is not Fault.LEFT_ON_DOUBT}


def with_window(made: Made, *, now_ms: int = NOW_MS) -> list[str]:
    """`--since` the time of one of its half records: what is older is, for the model, what retention took."""
    times = half_times(made.history)
    if not times:
        return []
    since_ms = times[made.seed // 10 % len(times)]
    history = windowed(made.history, since_ms)
    if since_ms > now_ms - DAY_MS:
        half_topic = f"{history.settings.namespace}.half"
        hiding = {
            p
            for (topic, p), here in history.bounds.items()
            if topic == half_topic and here.start > made.history.bounds[topic, p].start
        }
        history = replace(history, settings=replace(history.settings, hiding_waits=frozenset(hiding)))
    found = with_verify(replace(made, history=history), now_ms=now_ms, since_ms=since_ms, whole=made.history)
    return [f"since {since_ms}: {each}" for each in found]


def half_times(history: History) -> list[int]:
    half_topic = f"{history.settings.namespace}.half"
    return [r.timestamp_ms for r in history.records if r.topic == half_topic and r.kafka == "committed"]


def with_end(made: Made) -> list[str]:
    """`--until` the time of one of its half records: verify says nothing of what begins there or later."""
    times = half_times(made.history)
    if not times:
        return []
    until_ms = times[made.seed // 100 % len(times)]
    return [f"until {until_ms}: {each}" for each in with_verify(made, until_ms=until_ms)]


def windowed(history: History, since_ms: int) -> History:
    """A history as it is when retention took from half what is older than this, and no older record of a real topic was read."""
    names = {f"{history.settings.namespace}.{name}" for name in ("half", "op", "doubt")}
    half_topic = f"{history.settings.namespace}.half"
    young = (r for r in history.records if r.topic == half_topic and r.timestamp_ms >= since_ms)
    halves = [half for half in map(parse_half, young) if half]
    bounds, records = dict(history.bounds), list[Record]()
    for place, here in history.bounds.items():
        wanted_ms = [int(half.options["t"]) for half in halves if half.topic == place[0] and "t" in half.options]
        is_half = place[0] == half_topic
        first_ms = since_ms if is_half else min([since_ms, *wanted_ms]) - MARGIN_MS
        mine = sorted((r for r in history.records if (r.topic, r.partition) == place), key=lambda r: r.offset)
        begin = next((number for number, record in enumerate(mine) if record.timestamp_ms >= first_ms), len(mine))
        read = mine if place[0] in names and not is_half else mine[begin:]
        records += read
        if is_half:
            bounds[place] = replace(here, start=max(here.start, read[0].offset if read else here.readable_end))
        elif read != mine:
            bounds[place] = replace(here, start=0)  # nothing of the window is gone
    return replace(history, records=records, bounds=bounds)


def with_verify(
    made: Made, *, now_ms: int = NOW_MS, since_ms: int = 0, until_ms: int | None = None, whole: History | None = None
) -> list[str]:
    settings = replace(made.history.settings, now_ms=now_ms, grace_ms=WantedWindow(since_ms=0).grace_ms)
    report = judge(replace(made.history, settings=settings))
    told = verified(whole or made.history, now_ms=now_ms, since_ms=since_ms, until_ms=until_ms)
    words = {txn.key: verdict(txn) for txn in report.transactions.values()}
    orphans = orphan_places(report)
    if until_ms is not None:
        ends = ends_at(made.history, until_ms)
        later = {txn.key for txn in report.transactions.values() if txn.begins_at >= ends[txn.partition]}
        words = {key: word for key, word in words.items() if key not in later}
        # Nor does it judge the order of one that is behind a later one; and half records that one lacks may be behind the end.
        alone = judge(replace(without(made.history, report, later), settings=settings))
        orders = {txn.key: verdict(txn) for txn in alone.transactions.values()}
        words |= {key: orders[key] for key, word in words.items() if word == "out_of_order"}
        lacking = [t for t in report.transactions.values() if len({m.index for m in t.at.values()}) < t.count]
        words |= {t.key: told.words[t.key] for t in lacking if t.key in words and told.words.get(t.key) in faults_of(t)}
        orphans -= naming_later(made.history, report)
    # Without a half record there is no verdict of verify's.
    found = [
        f"{key}: the model says {words.get(key)}, verify {told.words.get(key)}"
        for key in sorted({*words, *told.words})
        if words.get(key) != told.words.get(key, "out_of_window")
    ]
    return found + [
        f"{place}: {'only the model' if place in orphans else 'only verify'} says that it belongs to nobody"
        for place in sorted(orphans ^ told.orphans)
    ]


def faults_of(txn: Transaction) -> set[str]:
    """What may be said of one that lacks half records if they may follow: `out_of_window`, and if it is undecided without them, each of its faults."""
    kinds = {finding.kind for finding in txn.findings} if txn.state == "unknown" else set[Kind]()
    return {"out_of_window"} | {word for word, wanted in VERDICTS if kinds & wanted}


def without(history: History, report: Report, keys: Collection[str]) -> History:
    """A history without the half records of these transactions, and without what is on doubt and visible of them."""
    shown = {r.place for txn in report.transactions.values() if txn.key in keys for r, _ in txn.shown}

    def is_of_them(record: Record) -> bool:
        half, doubt_key = parse_half(record), (record.key or b"").decode("latin-1")
        is_half = record.topic == f"{history.settings.namespace}.half" and half is not None and half.txn_key in keys
        is_doubt = record.topic == f"{history.settings.namespace}.doubt" and "/".join(doubt_key.split("/")[:2]) in keys
        return is_half or is_doubt or record.place in shown

    return replace(history, records=[r for r in history.records if not is_of_them(r)])


def ends_at(history: History, until_ms: int) -> dict[int, int]:
    """By partition of half, where the records of that time begin."""
    half_topic = f"{history.settings.namespace}.half"
    places = [place for place in history.bounds if place[0] == half_topic]
    admin = Admin(Cluster(history, now_ms=NOW_MS, tombstones_ms=0))
    return {partition: end for (_, partition), end in admin.offsets_at(places, at_ms=until_ms).items()}


def naming_later(history: History, report: Report) -> frozenset[str]:
    """Records on real topics that name a half record behind the end of half: for `--until` they are of later transactions, if their headers are whole."""
    broken = {finding.places[0] for finding in report.findings if finding.detail == BROKEN_HEADERS}
    half_topic = f"{history.settings.namespace}.half"
    named = ((r, parse_origin(dict(r.headers).get("txl-origin"))) for r in history.records)
    ends = {place: bounds.readable_end for place, bounds in history.bounds.items()}
    later = (
        r.place for r, origin in named if origin and origin.offset >= ends.get((half_topic, origin.partition), 1 << 62)
    )
    return frozenset(later) - broken


def orphan_places(report: Report) -> frozenset[str]:
    """Records on real topics that no half record of a transaction stands behind."""
    of_transactions = [f for txn in report.transactions.values() for f in txn.findings]
    return frozenset(
        finding.places[0]
        for finding in report.findings
        if finding.kind is Kind.PHANTOM or (finding.kind is Kind.LEAKED and finding not in of_transactions)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold the judges against each other.")
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    asked = parser.parse_args()
    count = 0
    for number, seed in enumerate(seeds(asked.seed, asked.histories)):
        found = disagreements(make(seed))
        count += bool(found)
        for line in found:
            sys.stdout.write(f"SEED={seed}: {line}\n")
        if number % 500 == 499:
            sys.stderr.write(f"{number + 1} of {asked.histories}, {count} with disagreements\n")
    told = f"{asked.histories} histories from SEED={asked.seed}, {count} with disagreements\n"
    sys.stdout.write(told)
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main())
