"""What tests of services that use txlayer need: a Kafka, a namespace with a coordinator, assertions, waiting.

The fixtures are in `plugin.py`, which pytest finds by itself once `txlayer[testing]` is installed; everything else works
without pytest, too. A name is loaded when it is first used, because pytest loads this package in every run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txlayer.testing.access import KafkaAccess, memory_access, real_access, unique_name
    from txlayer.testing.stage import RunningCoordinator, Stage, wait_until

_MODULES = {
    "KafkaAccess": "txlayer.testing.access",
    "RunningCoordinator": "txlayer.testing.stage",
    "Stage": "txlayer.testing.stage",
    "memory_access": "txlayer.testing.access",
    "real_access": "txlayer.testing.access",
    "unique_name": "txlayer.testing.access",
    "wait_until": "txlayer.testing.stage",
}

__all__ = ["KafkaAccess", "RunningCoordinator", "Stage", "memory_access", "real_access", "unique_name", "wait_until"]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
