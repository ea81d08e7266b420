"""`txlayer doctor`: whether a cluster is fit for production, with the command that mends what is not."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from txlayer.adapters.telemetry import printable
from txlayer.cli import output
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import AsJson, Connection, option, with_bundles
from txlayer.config import CoordinatorConfig
from txlayer.operate.doctor import ClusterFinding, Level, examine, findings_json, is_ill

LEVEL_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan", Level.OK: "green"}
_ORDER = list(Level)


@with_bundles
def doctor(
    *,
    topic: Annotated[
        list[str] | None,
        option(
            "--topic",
            "A real topic to look at, too; may be repeated. Those that recent half messages name, and those of "
            "TXLAYER_TARGET_TOPICS, are looked at anyway.",
            "TOPIC",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        option(
            "--replication-factor",
            "What the namespace's topics must have; default: as many as there are brokers for, at most 3.",
            min=1,
        ),
    ] = None,
    strict: Annotated[bool, option("--strict", "Warnings count: exit code 1 for them too.")] = False,
    show_all: Annotated[bool, option("--all", "Show what is in order, too.")] = False,
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Check a cluster and a namespace before production, and after; exit code 1 when there is an error.

    Run it where, and with the credentials with which, the coordinators run. It never changes anything.
    docs/howto/doctor.md explains every check.
    """
    config = connection.config(CoordinatorConfig)
    # Here, so that `txlayer --help` does not load the Kafka client.
    from txlayer.adapters.kafka.inspection import inspect

    facts = inspect(config, topics=topic or (), replication_factor=replication_factor)
    found = examine(facts, config)
    if as_json:
        output.print_json(findings_json(found, config=config))
    else:
        show_findings(found, namespace=config.namespace, show_all=show_all)
    if is_ill(found, is_strict=strict):
        raise typer.Exit(ExitCode.FINDING)


def show_findings(found: Sequence[ClusterFinding], *, namespace: str, show_all: bool) -> None:
    counts = Counter(finding.level for finding in found)
    shown = [f for f in found if show_all or f.level is not Level.OK]
    console = output.console()
    console.print(printable(f"namespace {namespace}"))
    for finding, about in _together(sorted(shown, key=lambda f: _ORDER.index(f.level))):
        console.print()
        console.print(_block(finding, about), soft_wrap=True)
    console.print()
    summary = ", ".join(f"{counts[level]} {level.value}" for level in Level)
    more = "" if show_all else "; --all shows what is in order"
    console.print(f"{summary}{more}")


def _together(found: Sequence[ClusterFinding]) -> list[tuple[ClusterFinding, str]]:
    """What is said of several in the same words is said once, of all of them."""
    same: dict[ClusterFinding, list[str]] = {}
    for finding in found:
        same.setdefault(finding._replace(about=""), []).append(finding.about)
    return [(finding, ", ".join(filter(None, about))) for finding, about in same.items()]


def _block(finding: ClusterFinding, about: str) -> Text:
    # Lines as they are, however narrow the terminal: what mends is there to be copied.
    lines = [finding.reason, f"mend it by: {finding.mend}" if finding.mend else ""]
    block = Text(f"{finding.level.value:8} ", style=LEVEL_STYLES[finding.level])
    block.append(printable(f"{finding.check}  {about}"), style="not bold default")
    for line in filter(None, lines):
        block.append(f"\n{'':9}{printable(line)}", style="not bold default")
    return block
