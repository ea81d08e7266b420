"""Programs that tests need of Debian's packages: found, else installed when this process may."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

INSTALL_TIMEOUT_S = 300


def program(name: str, *, package: str) -> Path:
    """A program's path. Without it the test is skipped at home, and fails in CI."""
    found = shutil.which(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "--yes", "--no-install-recommends", package]
        for command in (["apt-get", "update"], install):
            subprocess.run(
                command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, capture_output=True,
                check=False, timeout=INSTALL_TIMEOUT_S,
            )  # fmt: skip
        found = shutil.which(name)
    if found is None:
        missing = f"{name}: install Debian's package {package}"
        if "CI" in os.environ:
            pytest.fail(missing)
        pytest.skip(missing)
    return Path(found)
