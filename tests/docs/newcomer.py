"""A new user: types what README and docs say, from nothing to a message of their own, and tells how long it took.

`make newcomer` runs it. Nothing of this machine is used but Python, what pip and Java find by themselves, and the wheel
that stands in for the package index: a new folder, a new HOME, a new environment. It is no test of `make test`, because it
downloads half a gigabyte. What it measured is written down in docs/explanation/first-message.md.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.packaging import CONSTRAINTS, ROOT, build_wheel, clean_environ

README = (ROOT / "README.md").read_text(encoding="utf-8")
BROKER_PAGE = (ROOT / "docs" / "howto" / "local-broker.md").read_text(encoding="utf-8")

READ_PER_MINUTE = 200
"""Words: slow reading, of something new."""
TYPED_PER_MINUTE = 200
"""Characters: forty words, a person who looks at the screen."""
PASTE_S = 10.0
"""To copy a block of code into a file and save it."""
PORT = 9092
STEP_S = 900


class Step(NamedTuple):
    """One thing that was done."""

    said: str
    typed: int
    machine_s: float


def install_line() -> str:
    """The line that installs what README's commands need."""
    lines: list[str] = re.findall(r"^pip install .*$", BROKER_PAGE, re.MULTILINE)
    (line,) = lines
    return line


def commands() -> list[str]:
    """README's command lines that start everything, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (block,) = (block for block in blocks if "txlayer broker start" in block)
    return [line.partition("#")[0].strip() for line in block.splitlines()]


def program() -> str:
    """README's producer and consumer, one file."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE))


def words_to_read() -> int:
    """Of README up to where the message is seen, and of the broker's page up to its first lines to type.

    Code is copied, not read.
    """
    seen, started = README.rindex("```python"), BROKER_PAGE.index("```sh")
    text = f"{README[:seen]}\n{BROKER_PAGE[:started]}"
    return len(re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).split())


class Newcomer:
    """One person at one terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = clean_environ(folder / "home")
        (folder / "home").mkdir()
        self.steps: list[Step] = []
        self._port = PORT if _is_free(PORT) else _free_port()
        if self._port != PORT:
            self.environ["TXLAYER_BOOTSTRAP_SERVERS"] = f"127.0.0.1:{self._port}"
            _say(f"port {PORT} is taken here; {self._port} instead")

    def install(self) -> None:
        """A virtual environment and the package."""
        self._type(f"{sys.executable} -m venv shop", said="python -m venv shop")
        bin_folder = self.folder / "shop" / "bin"
        self.environ["PATH"] = os.pathsep.join((str(bin_folder), self.environ["PATH"]))
        line = install_line()
        wheel = build_wheel(self.folder)
        ours = line.replace("txlayer[", f"{wheel}[") + f" --quiet --constraint {CONSTRAINTS}"
        self._type(ours, said=line)

    @contextmanager
    def everything_running(self) -> Iterator[None]:
        """Broker, topics, and a coordinator in a terminal of its own; all end with the block."""
        start, apply, run = commands()
        coordinator = None
        try:
            self._type(f"{start} --port {self._port}", said=start)
            self._type(apply, said=apply)
            with (self.folder / "coordinator.log").open("wb") as log:
                coordinator = subprocess.Popen(run.split(), cwd=self.folder, env=self.environ, stdout=log, stderr=log)
            self.steps.append(Step(run, len(run), 0.0))
            yield
        finally:
            if coordinator is not None:
                coordinator.send_signal(signal.SIGINT)  # Ctrl-C, as README says
                coordinator.wait(60)
            self._run("txlayer broker wipe --yes")

    def send_and_see(self) -> str:
        """README's program, pasted into a file and run; what it printed."""
        text = program().replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{self._port}")
        (self.folder / "shop.py").write_text(text, encoding="utf-8")
        return self._type("python shop.py", said="python shop.py")

    def _type(self, command: str, *, said: str) -> str:
        began = time.monotonic()
        out = self._run(command)
        self.steps.append(Step(said, len(said), time.monotonic() - began))
        return out

    def _run(self, command: str) -> str:
        ran = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        assert 0 == ran.returncode, f"{command}\n{ran.stdout}{ran.stderr}"
        return ran.stdout


def told(steps: list[Step]) -> str:
    """The table of the page."""
    machine_s = sum(step.machine_s for step in steps)
    installing_s = sum(step.machine_s for step in steps if step.said.startswith("pip "))
    words, typed = words_to_read(), sum(step.typed for step in steps)
    reading_s, typing_s = words * 60 / READ_PER_MINUTE, typed * 60 / TYPED_PER_MINUTE + 2 * PASTE_S
    rows = [
        ("typed", "machine"),
        ("---", "---"),
        *((f"`{step.said}`", f"{step.machine_s:.1f} s") for step in steps),
        (f"all: {typed} characters, and two blocks pasted", f"{machine_s:.1f} s"),
    ]
    table = "\n".join(f"| {left} | {right} |" for left, right in rows)
    return (
        f"{table}\n\n"
        f"{words} words to read: {reading_s:.0f} s. Typing and pasting: {typing_s:.0f} s. Together {reading_s + typing_s:.0f} s "
        f"of a person's time, of 300 s; the machine's {machine_s:.0f} s ({installing_s:.0f} s of them pip) come on top.\n"
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def main() -> None:
    """From nothing to a message."""
    folder = Path(tempfile.mkdtemp(prefix="txlayer-newcomer-"))
    try:
        person = Newcomer(folder)
        person.install()
        with person.everything_running():
            out = person.send_and_see()
            assert "Resolution.COMMIT" in out, out
            assert re.search(r"""b'{"order": "order-\w+", "cents": 1999}'""", out), out
        _say(told(person.steps))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
