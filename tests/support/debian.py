"""Programs that tests need of Debian's packages: found, else installed when this process may."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

IS_CI = os.environ.get("CI", "").lower() in ("1", "true")
"""In CI nothing is skipped: what a machine lacks makes a test fail there."""

INSTALL_TIMEOUT_S = 300
LOCK_FILE = Path(tempfile.gettempdir()) / "txlayer-tests-packages.lock"


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test at home, and fail it in CI."""
    if IS_CI:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def program(name: str, *, package: str) -> Path:
    """A program's path. Without it the test is skipped at home, and fails in CI."""
    found = shutil.which(name)
    if found is None:
        install(package)
        found = shutil.which(name)
    if found is None:
        skip_or_fail(f"{name}: install Debian's package {package}")
    return Path(found)


def install(*packages: str) -> None:
    """Install packages where this process may; one worker of the tests at a time."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    # RUNLEVEL: a package that brings a service does not start it.
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    with LOCK_FILE.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", *packages]):
            subprocess.run(command, env=quiet, capture_output=True, check=False, timeout=INSTALL_TIMEOUT_S)
