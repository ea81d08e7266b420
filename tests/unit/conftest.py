"""Hypothesis as it is set for these tests."""

from __future__ import annotations

from tests.support.profiles import register_profiles

register_profiles()
