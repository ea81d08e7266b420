"""The embedded broker's pure parts: the jar lock, settings, versions, free ports, and the documents that tools are given."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from txlayer.adapters.kafka.local import server
from txlayer.adapters.kafka.local.runtime import JarLock, LocalConfig, parse_lock, parse_version, read_lock
from txlayer.adapters.kafka.local.server import (
    BRIEF,
    FAST,
    LASTING,
    BackgroundBroker,
    DataFolder,
    Server,
    new_id,
    render_properties,
    server_settings,
)
from txlayer.errors import ConfigError, InvariantError

SERVER = Server("id", "4.3.0", 9092, 19092)
LOCK = parse_lock("# a comment\n\norg.apache.kafka:kafka_2.13:4.3.0 10 aa\norg.slf4j:slf4j-simple:1.7.36 20 bb\n")


def settings_of(server: Server, **more: str) -> dict[str, str]:
    """Its settings."""
    return server_settings(server, log_folder=Path("/data"), more=more)


def test_the_lock_that_ships_names_one_kafka_and_a_checksum_for_every_jar() -> None:
    lock = read_lock()

    assert "4.3.0" == lock.version
    assert 46 == len({jar.file_name for jar in lock.jars})
    assert {64} == {len(jar.sha256) for jar in lock.jars}
    assert all(jar.size_bytes > 0 for jar in lock.jars)


def test_a_lock_line_is_a_coordinate_a_size_and_a_checksum() -> None:
    assert "4.3.0" == LOCK.version
    assert 30 == LOCK.size_bytes
    assert ["kafka_2.13-4.3.0.jar", "slf4j-simple-1.7.36.jar"] == [j.file_name for j in LOCK.jars]


@pytest.mark.parametrize("line", ["a:b:1 10", "a:b 10 aa", "a:b:1 ten aa", "a:b:1 10 aa more"])
def test_a_damaged_lock_is_a_fault_of_ours_and_names_its_line(line: str) -> None:
    with pytest.raises(InvariantError, match="line 2 "):
        parse_lock(f"# comment\n{line}\n")


def test_a_lock_without_kafka_is_refused() -> None:
    with pytest.raises(InvariantError, match="does not name kafka"):
        parse_lock("org.slf4j:slf4j-simple:1.7.36 20 bb\n")


def test_another_content_gets_another_folder() -> None:
    other = JarLock((*LOCK.jars[:1],))

    assert LOCK.folder_name != other.folder_name
    assert LOCK.folder_name.startswith("kafka-4.3.0-")


def test_one_broker_keeps_its_internal_topics_alone() -> None:
    settings = settings_of(SERVER)

    assert "1" == settings["offsets.topic.replication.factor"]
    assert "1" == settings["transaction.state.log.replication.factor"]
    assert "1" == settings["transaction.state.log.min.isr"]
    assert "1@127.0.0.1:19092" == settings["controller.quorum.voters"]


def test_a_broker_listens_to_this_machine_alone() -> None:
    listeners = settings_of(SERVER)["listeners"].split(",")

    assert ["127.0.0.1"] * 2 == [each.split("://")[1].split(":")[0] for each in listeners]


def test_a_mistyped_topic_is_never_created() -> None:
    assert "false" == settings_of(SERVER)["auto.create.topics.enable"]


def test_a_users_property_wins() -> None:
    assert "7" == settings_of(SERVER, **{"num.io.threads": "7"})["num.io.threads"]


def test_properties_are_one_line_each_whatever_their_values_hold() -> None:
    assert "a=1\nb=x\\\\y\\nz\\u00e9\n" == render_properties({"a": "1", "b": "x\\y\nzé"})


@pytest.mark.parametrize("flags", [BRIEF, LASTING, FAST])
def test_every_broker_has_a_limit_for_its_heap(flags: tuple[str, ...]) -> None:
    assert 1 == sum(flag.startswith("-Xmx") for flag in flags)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21.0.8" 2025-07-15 LTS', 21),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no java here", None),
    ],
)
def test_a_javas_version_is_read_from_what_it_says(said: str, version: int | None) -> None:
    assert version == parse_version(said)


def test_settings_come_from_the_given_mapping_and_empty_ones_count_as_none() -> None:
    config = LocalConfig.from_environ(
        {"TXLAYER_HOME": "/a", "JAVA_HOME": "", "TXLAYER_MAVEN_URL": "http://mirror/", "PATH": "/bin"}
    )

    assert Path("/a") == config.home
    assert config.java_home is None
    assert "http://mirror/" == config.maven_url
    assert "/bin" == config.search_path


def test_the_cache_follows_the_desktop_standard() -> None:
    assert Path("/c/txlayer") == LocalConfig.from_environ({"XDG_CACHE_HOME": "/c"}).home


def test_a_cluster_id_has_kafkas_form() -> None:
    assert 22 == len(new_id())


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    """The folder of a broker of Kafka 4.3.0."""
    record = {
        "format": 1,
        "cluster_id": "id",
        "kafka_version": "4.3.0",
        "nodes": [{"node_id": 1, "client_port": 9092, "controller_port": 19092}],
    }
    (tmp_path / "cluster.json").write_text(json.dumps(record), "utf-8")
    return DataFolder(tmp_path)


def test_data_of_a_later_kafka_are_refused_with_the_way_out(folder: DataFolder) -> None:
    with pytest.raises(ConfigError, match="written by a later Kafka") as refused:
        folder.open(kafka_version="4.2.9")

    assert "txlayer broker wipe" in str(refused.value)


def test_data_of_an_earlier_kafka_are_taken_over(folder: DataFolder) -> None:
    assert Server("id", "4.10.1", 9092, 19092) == folder.open(kafka_version="4.10.1")


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dice say 15000, 15000, 15001, 15001, …; 15002 alone is held by somebody."""
    said = itertools.chain.from_iterable((n, n) for n in itertools.count(15_000))
    monkeypatch.setattr(server, "random", SimpleNamespace(randint=lambda *_: next(said)))
    monkeypatch.setattr(server, "is_free", lambda port: port != 15_002)


@pytest.mark.usefixtures("counting")
def test_ports_are_different_free_and_apart_from_those_chosen_before() -> None:
    assert [15_000, 15_003, 15_004] == server.free_ports(3, apart_from={15_001})


def test_no_free_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "is_free", lambda _: False)

    with pytest.raises(ConfigError, match="no free ports"):
        server.free_ports(1)


def test_a_start_waits_also_for_a_broker_that_runs_and_is_not_ready_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_for: list[str] = []
    monkeypatch.setattr(DataFolder, "load", lambda _self: SERVER)
    monkeypatch.setattr(DataFolder, "living_pid", lambda _self: 1)
    monkeypatch.setattr(server, "answers", lambda _address, **_: True)
    monkeypatch.setattr(server, "wait_until_ready", lambda address, **_: waited_for.append(address))

    BackgroundBroker(tmp_path).start(pytest.fail, port=None, properties={})

    assert [SERVER.address] == waited_for
