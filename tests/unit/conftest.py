"""Hypothesis as it is set for these tests, and the stage of those of producers."""

from tests.support.producer_stage import stage
from tests.support.profiles import register_profiles

__all__ = ["stage"]

register_profiles()
