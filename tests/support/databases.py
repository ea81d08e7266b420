"""Real database servers for one run: found or installed, started in a folder of their own, ended by their process id."""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.support.debian import install, program
from tests.support.programs import run_program
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local.server import free_ports

START_S = 180
PACKAGES = {
    "postgresql": ("postgresql",),
    "mariadb": ("mariadb-server-core", "mariadb-client-core"),  # without a service that starts by itself
}
MYSQL_ROOT = Path(tempfile.gettempdir()) / "txlayer-mysql"
BINARIES = {"postgresql": ("initdb", "postgres"), "mariadb": ("mariadb-install-db", "mariadbd", "my_print_defaults")}


class NoServerError(Exception):
    """The server's programs are not there, and nobody could install them."""


def free_port() -> int:
    """A port of this machine that nobody listens on now, and that no outgoing connection is given until it is used."""
    return free_ports(1)[0]


def programs(kind: str) -> dict[str, str]:
    """{name: path} of a server's programs; they are installed when this process may.

    Raises:
        NoServerError: they are missing.
    """
    found = _found(kind)
    if len(found) < len(BINARIES[kind]):
        install(*PACKAGES[kind])
        found = _found(kind)
    missing = [name for name in BINARIES[kind] if name not in found]
    if missing:
        raise NoServerError(f"{', '.join(missing)}: install {' and '.join(PACKAGES[kind])}")
    return found


def _found(kind: str) -> dict[str, str]:
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]
    folders += [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    paths = {name: shutil.which(name, path=os.pathsep.join(folders)) for name in BINARIES[kind]}
    return {name: path for name, path in paths.items() if path is not None}


class _Owner:
    """Who runs the server: database servers refuse to be root's."""

    def __init__(self) -> None:
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None

    def own(self, folder: Path) -> None:
        """Hand a folder over."""
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)

    def start(self, command: Sequence[str], log: Path, folder: Path) -> subprocess.Popen[bytes]:
        """Start a program as that user."""
        home = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "LC_ALL": "C"}
        with log.open("ab") as output:
            if self._account is None:
                return subprocess.Popen(command, cwd=folder, env=home, stdout=output, stderr=output)
            return subprocess.Popen(
                command,
                cwd=folder,
                env=home,
                stdout=output,
                stderr=output,
                user=self._account.pw_uid,
                group=self._account.pw_gid,
                extra_groups=[],
            )


@contextmanager
def postgresql_server(*, is_durable: bool = False) -> Iterator[str]:
    """A PostgreSQL server; its address for SQLAlchemy and psycopg."""
    with crashing_postgresql(fsync="on" if is_durable else "off") as (url, _):
        yield url


@contextmanager
def crashing_postgresql(**settings: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """A PostgreSQL server with these settings: its address, and a call that crashes it and starts it again.

    A crash loses what the server has in its memory alone.
    """
    import psycopg

    found = programs("postgresql")
    port = free_port()
    place = f"txlayer@127.0.0.1:{port}/postgres"
    with _folder() as (folder, owner, log), ExitStack() as stack:
        data = folder / "data"
        make = [found["initdb"], "-D", str(data), "-U", "txlayer", "--auth=trust", "--no-sync", "-E", "UTF8"]
        _ended(owner.start(make, log, folder), log)
        command = [found["postgres"], "-D", str(data)]
        for name, value in {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 60,
            "shared_buffers": "64MB",
            **settings,
        }.items():
            command += ["-c", f"{name}={value}"]
        servers: list[subprocess.Popen[bytes]] = []

        def is_ready() -> bool:
            # It listens before it has started, and refuses connections until then.
            with suppress(psycopg.OperationalError), psycopg.connect(f"postgresql://{place}"):
                return True
            return False

        def start() -> None:
            server = owner.start(command, log, folder)
            servers.append(server)
            stack.enter_context(_running(server, signal.SIGINT, log))
            _wait_until_listening(server, port, log)
            wait_until(is_ready, within=START_S, what="PostgreSQL has started up")

        def crash() -> None:
            servers[-1].send_signal(signal.SIGQUIT)  # its processes end at once, and write nothing
            servers[-1].wait(START_S)
            start()

        start()
        yield f"postgresql+psycopg://{place}", crash


def mysql_root() -> Path:
    """A small Debian unstable with its MySQL, made once as root: other releases of Debian have MariaDB alone.

    Raises:
        NoServerError: it could not be made.
    """
    if os.geteuid() != 0:
        raise NoServerError("MySQL is installed into a folder of its own, which takes root")
    server = MYSQL_ROOT / "usr" / "sbin" / "mysqld"
    if not server.exists():
        shutil.rmtree(MYSQL_ROOT, ignore_errors=True)
        make = [
            str(program("debootstrap", package="debootstrap")),
            "--variant=minbase",
            "--no-check-gpg",
            "sid",
            str(MYSQL_ROOT),
        ]
        get = ["chroot", str(MYSQL_ROOT), "apt-get", "install", "--yes", "--no-install-recommends", "mysql-server-core"]
        for command in ([*make, _mirror()], get):
            ended = run_program(command, within=900)
            if ended.returncode:
                raise NoServerError(ended.stderr[-1_000:] or ended.stdout[-1_000:])
    return MYSQL_ROOT


def _mirror() -> str:
    """Where this machine gets Debian's packages from."""
    for path in [*Path("/etc/apt/sources.list.d").glob("*.sources"), Path("/etc/apt/sources.list")]:
        found = re.search(r"^(?:URIs:|deb(?: \[.*\])?) *(http\S+/debian/?)\s", path.read_text(), re.MULTILINE)
        if found:
            return found[1]
    raise NoServerError("no mirror of Debian is named in /etc/apt")


@contextmanager
def mysql_server(*options: str) -> Iterator[str]:
    """A MySQL server with these options; its address for SQLAlchemy."""
    root = mysql_root()
    with _folder(root) as (folder, owner, log):
        data, inside = folder / "data", Path("/") / folder.relative_to(root)
        account = pwd.getpwnam("nobody").pw_name
        run = ["chroot", str(root), "/usr/sbin/mysqld", "--no-defaults", f"--user={account}", "--secure-file-priv="]
        run.append(f"--datadir={inside / 'data'}")
        data.mkdir()
        owner.own(data)
        with log.open("ab") as output:
            assert not subprocess.run(
                [*run, "--initialize-insecure"], stdout=output, stderr=output, check=False
            ).returncode
            port = free_port()
            run += [
                f"--port={port}",
                "--bind-address=127.0.0.1",
                f"--socket={inside / 's'}",
                f"--pid-file={inside / 'pid'}",
            ]
            run += ["--mysqlx=OFF", "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", *options]
            server = subprocess.Popen(run, stdout=output, stderr=output)
        with _running(server, signal.SIGTERM, log):
            _wait_until_listening(server, port, log)
            _make_database(folder / "s")
            yield f"mysql+pymysql://txlayer:geheim@127.0.0.1:{port}/shop"


@contextmanager
def mariadb_server(*options: str) -> Iterator[str]:
    """A MariaDB server with these options, or a MySQL server with `TXLAYER_TEST_MYSQL=1`; its address for SQLAlchemy."""
    if os.environ.get("TXLAYER_TEST_MYSQL"):
        with mysql_server(*options) as url:
            yield url
        return
    found = programs("mariadb")
    port = free_port()
    with _folder() as (folder, owner, log):
        data = folder / "data"
        make = [
            found["mariadb-install-db"],
            "--no-defaults",
            f"--datadir={data}",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
            "--innodb-flush-log-at-trx-commit=0",
        ]
        _ended(owner.start(make, log, folder), log)
        server = owner.start(
            [
                found["mariadbd"],
                "--no-defaults",
                f"--datadir={data}",
                f"--port={port}",
                "--bind-address=127.0.0.1",
                f"--socket={folder / 's'}",
                f"--pid-file={folder / 'pid'}",
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-buffer-pool-size=64M",
                *options,
            ],
            log,
            folder,
        )
        with _running(server, signal.SIGTERM, log):
            _wait_until_listening(server, port, log)
            _make_database(folder / "s")
            yield f"mysql+pymysql://txlayer:geheim@127.0.0.1:{port}/shop"


def _make_database(unix_socket: Path) -> None:
    import pymysql

    administrator = pymysql.connect(unix_socket=str(unix_socket), user="root")
    with administrator, administrator.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
        # MySQL takes a client of 127.0.0.1 for one of localhost if it finds that name.
        for host in ("127.0.0.1", "localhost"):
            cursor.execute(f"CREATE USER txlayer@'{host}' IDENTIFIED BY 'geheim'")
            cursor.execute(f"GRANT ALL ON *.* TO txlayer@'{host}'")


@contextmanager
def _folder(root: Path | None = None) -> Iterator[tuple[Path, _Owner, Path]]:
    owner = _Owner()
    folder = Path(tempfile.mkdtemp(prefix="txlayer-db-", dir=root and root / "tmp"))
    try:
        owner.own(folder)
        yield folder, owner, folder / "log"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(server: subprocess.Popen[bytes], end: signal.Signals, log: Path) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            server.send_signal(end)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
            raise AssertionError(f"the server did not end:\n{_tail(log)}") from None


def _ended(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.wait(120) == 0, _tail(log)


def _wait_until_listening(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    def is_listening() -> bool:
        assert server.poll() is None, _tail(log)
        with socket.socket() as made:
            made.settimeout(1)
            return made.connect_ex(("127.0.0.1", port)) == 0

    wait_until(is_listening, within=START_S, what=f"a server on port {port}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-3_000:]
