"""`python -m tests.support.kafka_release 3.9.1`: fetches a release of Kafka by Maven, once, and prints its folder."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from txlayer.adapters.kafka.local import LocalConfig

POM = """<project><modelVersion>4.0.0</modelVersion><groupId>txlayer</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{release}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
FETCH = ["mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", "-DincludeScope=runtime"]


def fetched(release: str) -> Path:
    """The folder of a release, for TXLAYER_KAFKA_HOME; whole or not there."""
    folder = LocalConfig.from_environ(os.environ).home / f"kafka-{release}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            work = Path(name)
            (work / "pom.xml").write_text(POM.format(release=release), encoding="utf-8")
            subprocess.run([*FETCH, "-DoutputDirectory=found/libs"], cwd=work, check=True, stdout=sys.stderr)
            (work / "found").rename(folder)
    return folder


if __name__ == "__main__":
    sys.stdout.write(f"{fetched(sys.argv[1])}\n")
