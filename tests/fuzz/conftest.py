"""Hypothesis as it is set for these tests."""

from tests.support.profiles import register_profiles

register_profiles()
