"""Folders on whatever Spark writes to (a disk, HDFS, an object store): names, small texts, ends. Never: a table."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from txlayer.errors import UsageError

WRITING = {
    # Done again, a write takes the place of all that is there; a session may say otherwise.
    "partitionOverwriteMode": "static",
    # The file by which a folder counts.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
}
"""Options of every write of Parquet, whatever the cluster says."""


class Folder:
    """One folder, through the file system that Spark itself uses for its path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Nothing is created before something is written."""
        self.path = path.rstrip("/")
        # The JVM has no Python types.
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark gives Python no other way to its file systems
        configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - the same
        self._new_path = jvm.org.apache.hadoop.fs.Path
        self._root = self._new_path(self.path)
        self._files = self._root.getFileSystem(configuration)
        self._read_all = jvm.org.apache.commons.io.IOUtils.toString

    def at(self, *names: str) -> str:
        """The path of something in it."""
        return "/".join((self.path, *names))

    def names(self, *below: str) -> list[str]:
        """What a folder in it holds, sorted; nothing when it is not there."""
        where = self._new_path(self.at(*below))
        if not self._files.exists(where):
            return []
        return sorted(status.getPath().getName() for status in self._files.listStatus(where))

    def has(self, *names: str) -> bool:
        """Whether that is there."""
        return bool(self._files.exists(self._new_path(self.at(*names))))

    def remove(self, *names: str) -> None:
        """End a file, or a folder with all in it; nothing when it is not there."""
        self._files.delete(self._new_path(self.at(*names)), True)

    def read_json(self, *names: str) -> Any:
        """A small file of ours."""
        stream = self._files.open(self._new_path(self.at(*names)))
        try:
            return json.loads(self._read_all(stream, "UTF-8"))
        finally:
            stream.close()

    def write_json(self, value: Any, *names: str) -> None:
        """Put a new small file in place in one step: a killed writer leaves none of that name.

        Raises:
            UsageError: another job put one of that name there meanwhile.
        """
        *folders, name = names
        draft = self._new_path(self.at(*folders, f"_{name}"))
        stream = self._files.create(draft, True)
        try:
            stream.write(json.dumps(value, sort_keys=True).encode())
        finally:
            stream.close()
        # Never over another one: most file systems could only end that first, and be killed in between.
        if self.has(*names) or not self._files.rename(draft, self._new_path(self.at(*names))):
            raise UsageError(
                f"{self.at(*names)} was written by another job meanwhile: run one at a time"
            )
