"""Debian's Prometheus for tests: found or installed, run in a folder of its own, ended by its process id, and asked."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.databases import free_port
from tests.support.debian import program
from tests.support.programs import run_program
from tests.support.waiting import wait_until

PACKAGE = "prometheus"
ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
START_S = 60.0
ANSWER_S = 10.0


def promtool(*arguments: str, folder: Path, text: str | None = None) -> tuple[int, str]:
    """(exit code, everything it said)."""
    answer = run_program([program("promtool", package=PACKAGE), *arguments], within=120, cwd=folder, input=text)
    return answer.returncode, answer.stdout + answer.stderr


def get(port: int, path: str, *, accept: str = "*/*") -> tuple[int, str]:
    """(status, body) of a page on this machine; status 0: nobody answered."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (urllib.error.URLError, ConnectionError) as exc:
        return 0, str(exc)


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What it answers now.

        Raises:
            AssertionError: it refuses the expression.
        """
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        status, body = get(self._port, path)
        assert status == 200, f"{expression}: {status} {body}"
        answer = json.loads(body)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """The rules that it evaluates."""
        _, body = get(self._port, "/api/v1/rules")
        groups = json.loads(body)["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def running_prometheus(folder: Path, targets: Mapping[str, Sequence[str]]) -> Iterator[Prometheus]:
    """A server with our alerts that scrapes `targets` ({job: addresses}) every second."""
    shutil.copy(COMPOSE / "prometheus" / "alerts.yml", folder)
    jobs = [{"job_name": job, "static_configs": [{"targets": list(addresses)}]} for job, addresses in targets.items()]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": jobs,
    }
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    port, log_file = free_port(), folder / "prometheus.log"
    command = [
        str(program("prometheus", package=PACKAGE)),
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log_file.open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:

        def is_ready() -> bool:
            assert server.poll() is None, log_file.read_text(encoding="utf-8")[-2000:]
            return get(port, "/-/ready")[0] == 200

        wait_until(is_ready, within=START_S, what="Prometheus is ready")
        yield Prometheus(port)
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
