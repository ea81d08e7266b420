"""The files of topics/ as mappings, from the checkout or from the copy in the wheel."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from txlayer.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
# The wheel's copy first: next to an installed package, `topics/` could be anything.
_FOLDERS = (_PACKAGE / "_topics", _PACKAGE.parent / "topics")

NAMESPACE_ROLES = ("half", "op", "doubt", "check", "locks")
"""The topics of a namespace."""

GROUP_ROLES = ("dlq", "replay")
"""The topics of a consumer group, one of each for every topic that it consumes."""


def read_topic_files(folders: Sequence[Path] = _FOLDERS) -> dict[str, dict[str, object]]:
    """{role: content} of every topic file; the role is the name of the file (`half`, `op`, …).

    It uses the first existing folder.

    Raises:
        ConfigError: the files are missing, or one is not valid TOML.
    """
    return _read(folders, "")


def read_acl_files(folders: Sequence[Path] = _FOLDERS) -> dict[str, dict[str, object]]:
    """{role: content} of every file of rights; the role is the name of the file (`producer`, `coordinator`, …).

    Raises: as `read_topic_files`.
    """
    return _read(folders, "acl")


def _read(folders: Sequence[Path], below: str) -> dict[str, dict[str, object]]:
    folder = next((folder / below for folder in folders if (folder / below).is_dir()), None)
    if folder is None:
        raise ConfigError(
            "the installation is damaged, install txlayer again",
            name="topic files",
            value=None,
            expected="topics/*.toml",
        )
    files: dict[str, dict[str, object]] = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            files[path.stem] = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as exc:
            raise ConfigError(f"{path.name}: {exc}", name="topic file", value=path.name, expected="TOML") from exc
    return files
