"""`make fuzz INPUTS=n`: n mutations of the corpus, shared among the targets; what fails is kept in the corpus."""

import argparse
import hashlib
import random
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fuzz.mutation import CORPUS, corpus_of, mutated
from tests.fuzz.targets import TARGETS, Target

FINDINGS_MAX = 5
"""Of one target; then the others have their turn."""
SAY_EVERY_S = 10.0


@dataclass(slots=True)
class Fed:
    """What came of one target's inputs."""

    target: Target
    input_count: int = 0
    accepted_count: int = 0
    took_s: float = 0.0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.input_count / max(self.took_s, 1e-6)
        return (
            f"{self.target.name:15} {self.input_count:>9,} inputs, {self.accepted_count:>9,} accepted, "
            f"{self.took_s:6.1f} s, {rate:>8,.0f}/s, {len(self.findings)} findings"
        )


def feed(target: Target, *, input_count: int, seed: int, is_kept: bool = True) -> Fed:
    """The whole corpus, then mutations of it, the same ones for the same seed; `is_kept`: findings become part of it."""
    dice, corpus, fed = random.Random(f"{seed} {target.name}"), corpus_of(target.name), Fed(target)
    started = said = time.monotonic()
    while fed.input_count < input_count and len(fed.findings) < FINDINGS_MAX:
        number = fed.input_count
        raw = corpus[number] if number < len(corpus) else mutated(corpus, dice)
        fed.input_count += 1
        try:
            fed.accepted_count += target.check(raw)
        except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
            fed.findings.append(keep(target, raw, traceback.format_exc(), is_kept=is_kept))
        if time.monotonic() > said + SAY_EVERY_S:
            said = time.monotonic()
            say(f"{target.name:15} {fed.input_count:>9,} of {input_count:,}")
    fed.took_s = time.monotonic() - started
    return fed


def keep(target: Target, raw: bytes, told: str, *, is_kept: bool) -> str:
    """Tell of the input, and put it into the corpus, so that it comes again in every run; the file's name."""
    name = f"found-{hashlib.sha256(raw).hexdigest()[:12]}.bin"
    if is_kept:
        (CORPUS / target.name / name).write_bytes(raw)
    say(f"{target.name}: {name}\n{raw!r}\n{told}")
    return name


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--target", choices=[target.name for target in TARGETS], help="only this one")
    given = parser.parse_args(arguments)
    targets = [target for target in TARGETS if given.target in (None, target.name)]
    shares = sum(target.share for target in targets)
    say(f"seed {given.seed}")
    all_fed = []
    for target in targets:
        fed = feed(target, input_count=-(-given.inputs * target.share // shares), seed=given.seed)
        all_fed.append(fed)
        say(str(fed))
    input_count, took_s = sum(f.input_count for f in all_fed), sum(f.took_s for f in all_fed)
    finding_count = sum(len(f.findings) for f in all_fed)
    say(f"{input_count:,} inputs in {took_s:.0f} s, {finding_count} findings")
    return 1 if finding_count else 0


def say(line: str) -> None:
    """One line for whoever looks on."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
