"""Passwords come out of files, and go into nothing that anybody reads."""

from pathlib import Path

import pytest

from txlayer.cli.database import database_url
from txlayer.cli.options import client_config, from_file
from txlayer.config import ClientConfig, is_secret
from txlayer.errors import ConfigError

SENTINEL = "s3ntinel;with=all#signs"


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{SENTINEL}\n", "utf-8")
    return file


def test_a_secret_is_read_from_the_file_that_a_setting_names(password: Path) -> None:
    environ = {"TXLAYER_CLIENT_SETTINGS": f"sasl.username=u;sasl.password.file={password}"}

    config = client_config(ClientConfig, environ=environ)

    assert {"sasl.username": "u", "sasl.password": SENTINEL} == config.client_settings
    assert SENTINEL not in repr(config)


def test_settings_are_read_from_a_file_and_nearer_ones_win(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        f"# who we are\n\nsecurity.protocol = SASL_SSL\nsasl.password={SENTINEL}\nclient.id=far\nsasl.username=far\n",
        "utf-8",
    )
    environ = {
        "TXLAYER_CLIENT_SETTINGS_FILE": str(file),
        "TXLAYER_CLIENT_SETTINGS": "sasl.username=near;client.id=near",
    }

    config = client_config(ClientConfig, environ=environ, client_setting=["client.id=nearest"])

    assert {
        "security.protocol": "SASL_SSL",
        "sasl.password": SENTINEL,
        "sasl.username": "near",
        "client.id": "nearest",
    } == config.client_settings


@pytest.mark.threat("log in to the machine of a service")
@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "sasl.oauthbearer.client.secret",
        "sasl.jaas.config",
        "ssl.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    ],
)
def test_a_secret_on_a_command_line_is_refused_and_the_way_out_is_named(name: str) -> None:
    assert is_secret(name)
    with pytest.raises(ConfigError, match=f"{name}.file=PATH") as refused:
        client_config(ClientConfig, client_setting=[f"{name}={SENTINEL}"], environ={})

    assert SENTINEL not in str(refused.value)


@pytest.mark.threat("log in to the machine of a service")
@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://shop:s3ntinel@db/shop",
        "postgresql+psycopg://shop:s3ntinel//2@db/shop",
        "postgresql+psycopg://shop:s3nt@inel@db/shop",
        "postgresql+psycopg://shop@db/shop?password=s3ntinel",
        "postgresql+psycopg://shop@db/shop?sslkey=/k&sslpassword=s3ntinel",
        "mysql+pymysql://db/shop?user=shop&PASSWD=s3ntinel",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Dshop%3BPWD%3Ds3ntinel",
        "shop:s3ntinel@db",
    ],
)
def test_a_url_with_a_password_on_a_command_line_is_refused_and_the_ways_out_are_named(url: str) -> None:
    with pytest.raises(ConfigError, match=r"TXLAYER_INBOX_URL .*TXLAYER_INBOX_URL_FILE") as refused:
        database_url(url, name="TXLAYER_INBOX_URL")

    assert "nel" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://shop@db:5432/shop?sslmode=verify-full&passfile=/etc/shop/pgpass",
        "sqlite:////var/lib/shop:1/shop.db",
        "mysql+pymysql://db/shop",
    ],
)
def test_a_url_without_a_password_may_be_on_a_command_line(url: str) -> None:
    assert url == database_url(url, name="TXLAYER_INBOX_URL")


@pytest.mark.parametrize("name", ["sasl.username", "ssl.ca.location", "ssl.key.location"])
def test_what_is_no_secret_is_not_read_from_a_file(name: str, password: Path) -> None:
    assert not is_secret(name)
    with pytest.raises(ConfigError, match="only a secret"):
        client_config(ClientConfig, client_setting=[f"{name}.file={password}"], environ={})


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfes3ntinel", b"x" * 100_000])
def test_a_file_that_holds_no_secret_is_refused_without_its_content(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match=r"sasl\.password\.file") as refused:
        client_config(ClientConfig, client_setting=[f"sasl.password.file={file}"], environ={})

    assert "s3ntinel" not in str(refused.value)


def test_a_line_that_is_no_setting_is_told_by_its_number_alone(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.username=u\ns3ntinel\n", "utf-8")

    with pytest.raises(ConfigError, match="line 2") as refused:
        client_config(ClientConfig, environ={"TXLAYER_CLIENT_SETTINGS_FILE": str(file)})

    assert "s3ntinel" not in str(refused.value)


def test_the_end_of_a_password_with_a_semicolon_is_not_shown() -> None:
    environ = {"TXLAYER_CLIENT_SETTINGS": "sasl.password=first;s3ntinel"}

    with pytest.raises(ConfigError, match="TXLAYER_CLIENT_SETTINGS_FILE") as refused:
        client_config(ClientConfig, environ=environ)

    assert "s3ntinel" not in str(refused.value)


def test_the_address_of_a_database_comes_from_a_file_unless_it_is_said(password: Path) -> None:
    name = "TXLAYER_BARRIER_URL"

    assert from_file({f"{name}_FILE": str(password)}, name) == SENTINEL
    assert from_file({f"{name}_FILE": str(password), name: "nearer"}, name) == "nearer"
    assert from_file({}, name) is None


@pytest.mark.threat("control the network between")
@pytest.mark.parametrize(
    "setting", [{"enable.ssl.certificate.verification": "false"}, {"ssl.endpoint.identification.algorithm": "none"}]
)
def test_tls_to_a_broker_that_nobody_verifies_needs_ones_own_word(setting: dict[str, str]) -> None:
    settings = {"security.protocol": "SSL", **setting}

    with pytest.raises(ConfigError, match="TXLAYER_IS_INSECURE_ALLOWED=true"):
        ClientConfig(bootstrap_servers="broker:9093", client_settings=settings)
    assert ClientConfig(client_settings=settings)
    assert ClientConfig(bootstrap_servers="broker:9093", client_settings=settings, is_insecure_allowed=True)
