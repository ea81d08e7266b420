"""Worlds played in processes of their own, whose sets and dicts are in another order. Never what is in a world."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HASH_SEEDS = ("0", "1", "2")


def fingerprints_elsewhere(world: str, seeds: Sequence[int]) -> list[list[str]]:
    """What the worlds of this kind come to, once for each order of sets."""
    program = (
        "from tests.simulation.explore import WORLDS, play_plan; "
        f"print(*[play_plan(WORLDS[{world!r}](seed)).fingerprint() for seed in {tuple(seeds)}])"
    )
    return [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout.split()
        for hash_seed in HASH_SEEDS
    ]
