"""The seed of one run's random tests; printed by them, so that a run can be repeated."""

import os
import random
import sys

# E2E_ names ask the suite for replays and longer runs; TXLAYER_ names are settings of the product.
SEED = int(os.environ.get("E2E_SEED", "0")) or random.randrange(1, 1 << 31)


def random_source() -> random.Random:
    """A generator for one test, with the line that replays it."""
    say(f"replay with E2E_SEED={SEED}")
    return random.Random(SEED)


def say(*parts: object) -> None:
    """Figures of a run, beside its result: shown by `pytest -s`, and whenever the test fails."""
    sys.stdout.write(" ".join(map(str, parts)) + "\n")
