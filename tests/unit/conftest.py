"""How many examples hypothesis tries: few by default, many with `--hypothesis-profile=ci` or `deep`."""

from __future__ import annotations

from hypothesis import settings

# No deadline: a test never judges speed, and a busy machine is no failure.
settings.register_profile("quick", max_examples=60, deadline=None, print_blob=True)
settings.register_profile("ci", max_examples=500, deadline=None, print_blob=True)
settings.register_profile("deep", max_examples=20_000, deadline=None, print_blob=True)

if settings.get_current_profile_name() == "default":  # else somebody chose one
    settings.load_profile("quick")
