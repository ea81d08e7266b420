"""A real Prometheus scrapes real processes of every role under a small load, and answers every query and every alert."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Broker
from tests.support.arena import make_arena
from tests.support.broker import create_topic
from tests.support.check_back import Asker
from tests.support.dashboards import alerts, dashboard_expressions, named_in, series_names
from tests.support.databases import free_port
from tests.support.debian import program
from tests.support.logs import partition_counts
from tests.support.processes import CoordinatorProcess, TxlayerProcess
from tests.support.prometheus import PACKAGE, Prometheus, get, promtool, running_prometheus
from tests.support.responders import ResponderProcess
from tests.support.waiting import wait_until
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.testing.stage import comes_true

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PATIENCE_S = 60.0
SCRAPE_S = 1.0
OF_SPARK = {name for name in series_names() if name.startswith(("txlayer_audit_", "txlayer_stream_"))}
"""Series of audits and streams; `tests/spark` asks a running audit for them."""
SHOWN_LATER = {"ALERTS", "txlayer_responder_unknown_answers_total"} | OF_SPARK
"""Series that are there only after something went wrong, or where Spark runs."""

PROGRAM = """
from txlayer import COMMIT, OrderedConsumer

consumer = OrderedConsumer(
    bootstrap_servers={servers!r}, group="loyalty-{namespace}", topics=[{topic!r}], namespace={namespace!r},
    start_at="earliest",
)

@consumer.handler
def handle(message, context):
    pass

def check(request):
    return COMMIT
"""

TILL = """
import signal, threading

from prometheus_client import CollectorRegistry, start_http_server

from txlayer import Message, ProducerMetrics, TransactionalProducer
from txlayer.adapters.exposition import SampleCollector

is_over = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: is_over.set())
metrics, registry = ProducerMetrics(), CollectorRegistry()
registry.register(SampleCollector(metrics))
start_http_server({port}, addr="127.0.0.1", registry=registry)
with TransactionalProducer(
    bootstrap_servers={servers!r}, group="till", namespace={namespace!r}, metrics=metrics
) as producer:
    while not is_over.wait(0.02):
        producer.publish(Message({topic!r}, value="42 cents"))
"""
"""A program of a user's, with the page that it has for its own metrics."""


class Running:
    """A coordinator, a consumer, a responder and a producer, a load on them, and a Prometheus that looks at all."""

    def __init__(self, prometheus: Prometheus, ports: dict[str, int]) -> None:
        self.prometheus = prometheus
        self.ports = ports

    def wait_for(self, expression: str) -> None:
        """Until it is true of what was scraped."""
        wait_until(lambda: self.prometheus.query(expression), within=PATIENCE_S, what=expression)


def started(stack: ExitStack, broker: Broker, folder: Path, ports: dict[str, int]) -> None:
    """Every role with its port, and something to do for each."""
    arena = make_arena(broker.bootstrap_servers)
    group, topic = f"loyalty-{arena.namespace}", arena.targets[0]
    partitions = partition_counts(arena.servers, [topic])[topic]
    for name in (dead_letter_topic(group, topic), replay_topic(group, topic)):
        create_topic(arena.servers, name, partitions=partitions)
    (folder / "shop.py").write_text(
        PROGRAM.format(servers=arena.servers, namespace=arena.namespace, topic=topic), encoding="utf-8"
    )

    (folder / "till.py").write_text(
        TILL.format(port=ports["producer"], servers=arena.servers, namespace=arena.namespace, topic=topic),
        encoding="utf-8",
    )

    def at(role: str) -> list[str]:
        return ["--metrics-port", str(ports[role])]

    stack.enter_context(
        CoordinatorProcess(
            arena.servers,
            arena.namespace,
            log_file=folder / "coordinator.log",
            arguments=at("coordinator"),
            settings={"check_immunity": "1s"},
        )
    )
    command = ["consumer", "run", "shop:consumer", *at("consumer")]
    stack.enter_context(TxlayerProcess(command, log_file=folder / "consumer.log", folder=folder))
    asker = Asker(arena)
    stack.enter_context(
        ResponderProcess(
            arena.servers,
            arena.namespace,
            asker.group,
            folder=folder,
            name="responder",
            arguments=["--handler", "shop:check", *at("responder")],
        )
    )
    stack.enter_context(TxlayerProcess([], log_file=folder / "till.log", folder=folder, module="till"))
    for role, port in ports.items():
        wait_until(lambda port=port: get(port, "/readyz")[0] == 200, within=PATIENCE_S, what=role)  # type: ignore[misc]  # a lambda's own argument
    load = arena.load(rate=50, seed=8)
    load.start()
    stack.callback(load.stop)
    asker.ask(asker.question("a"), asker.question("b"))


@pytest.fixture(scope="module")
def running(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    program("prometheus", package=PACKAGE)
    folder = tmp_path_factory.mktemp("metrics")
    ports = {role: free_port() for role in ("coordinator", "consumer", "responder", "producer")}
    targets = {f"txlayer-{role}": [f"127.0.0.1:{port}"] for role, port in ports.items()}
    with ExitStack() as stack:
        started(stack, broker, folder, ports)
        prometheus = stack.enter_context(running_prometheus(folder, targets))
        found = Running(prometheus, ports)
        # Rates need two scrapes, and something that happened between them.
        found.wait_for("rate(txlayer_forwarded_records_total[30s]) > 0")
        found.wait_for("rate(txlayer_consumer_messages_handled_total[30s]) > 0")
        found.wait_for("sum(txlayer_responder_answers_stored_total) >= 2")
        found.wait_for("count(count_over_time((up == 1)[30s:1s]) > 3) == 4")
        found.wait_for("rate(txlayer_producer_transactions_total[30s]) > 0")
        found.wait_for("sum(txlayer_open_transactions) > 0")
        yield found


@pytest.mark.parametrize("role", ["coordinator", "consumer", "responder", "producer"])
def test_the_page_is_as_prometheus_wants_it(running: Running, role: str, tmp_path: Path) -> None:
    _, page = get(running.ports[role], "/metrics")

    code, said = promtool("check", "metrics", folder=tmp_path, text=page)

    assert (0, "") == (code, said)


def test_every_series_that_is_asked_for_was_scraped(running: Running) -> None:
    def missing() -> frozenset[str]:
        every = 'group by (__name__) ({__name__=~"txlayer_.+|process_.+|up"})'
        found = {series["metric"]["__name__"] for series in running.prometheus.query(every)}
        return series_names() - found - SHOWN_LATER

    comes_true(lambda: not missing(), within=PATIENCE_S, poll_s=SCRAPE_S)
    assert set() == missing()


def test_every_query_of_the_dashboard_has_data(running: Running) -> None:
    def empty() -> list[str]:
        return [
            expression
            for expression in dashboard_expressions()
            if not running.prometheus.query(expression) and not named_in(expression) <= SHOWN_LATER
        ]

    # A rate needs two scrapes of its series, which may be there only since something happened.
    comes_true(lambda: not empty(), within=PATIENCE_S, poll_s=SCRAPE_S)
    assert [] == empty()


def test_every_alert_is_evaluated_without_an_error(running: Running) -> None:
    def are_evaluated() -> bool:
        rules = running.prometheus.rules()
        return bool(rules) and all(rule["health"] != "unknown" for rule in rules)

    wait_until(are_evaluated, within=PATIENCE_S, what="all rules were evaluated")
    rules = running.prometheus.rules()
    assert {alert["alert"]: "ok" for alert in alerts()} == {r["name"]: r["health"] for r in rules}


def test_nothing_that_works_is_called_down_or_stalled(running: Running) -> None:
    def false_ones() -> list[dict[str, Any]]:
        return running.prometheus.query('ALERTS{alertname=~"Txlayer(Down|Stalled|NotReady|NobodyForwards)"}')

    # One scrape of a busy machine may be late: such an alert is pending, and goes.
    comes_true(lambda: not false_ones(), within=PATIENCE_S, poll_s=SCRAPE_S)
    assert [] == false_ones()


def test_counters_agree_with_what_was_read(running: Running) -> None:
    forwarded = (
        "txlayer_transaction_duration_seconds_count - on() txlayer_transactions_settled_total{decision='commit'}"
    )

    running.wait_for(f"abs({forwarded}) < 1")
