"""The shop's process as its parent sees it: what it told of its sales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from child import Child

TILL = Path(__file__).with_name("till.py")


class SellingShop(Child):
    """One `till.py` at a time."""

    name = "the shop"

    def __init__(self, *, bootstrap_servers: str, database_file: Path, log_folder: Path, purchase_count: int) -> None:
        super().__init__(
            [
                str(TILL),
                f"--bootstrap-servers={bootstrap_servers}",
                f"--database={database_file}",
                f"--purchases={purchase_count}",
            ],
            log_file=log_folder / "shop.log",
        )
        self.accepted_count = 0
        self.refused_count = 0
        self.took_ms: list[float] = []
        self.is_sold_out = False

    @property
    def sold_count(self) -> int:
        """Purchases that are over, as far as the shop told."""
        return self.accepted_count + self.refused_count

    def take(self, told: dict[str, Any]) -> None:
        """How many were sold, and how long each took."""
        self.accepted_count, self.refused_count = told["accepted"], told["refused"]
        self.took_ms += told["took_ms"]
        self.is_sold_out = bool(told.get("is_sold_out"))
