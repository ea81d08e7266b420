"""How many examples hypothesis tries: few by default, many with `--hypothesis-profile=ci` or `deep`."""

from __future__ import annotations

from hypothesis import Phase, settings


def register_profiles() -> None:
    """To be called by a folder's conftest: by then pytest has not chosen one yet."""
    # No deadline: a test never judges speed, and a busy machine is no failure.
    settings.register_profile("quick", max_examples=60, deadline=None, print_blob=True)
    settings.register_profile("ci", max_examples=500, deadline=None, print_blob=True)
    settings.register_profile("deep", max_examples=20_000, deadline=None, print_blob=True)
    # The same examples for every mutant, and no time for the smallest one that shows it.
    settings.register_profile(
        "mutation",
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
    )

    if settings.get_current_profile_name() == "default":  # else somebody chose one
        settings.load_profile("quick")
