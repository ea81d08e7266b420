"""How many examples hypothesis tries: few by default, half of them in `make check`, many with `--hypothesis-profile=ci` or `deep`."""

from hypothesis import HealthCheck, Phase, settings


def register_profiles() -> None:
    """To be called by a folder's conftest: by then pytest has not chosen one yet."""
    # A test never judges speed, neither its own nor that of drawing: a busy machine is no failure.
    unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    settings.register_profile("check", unhurried, max_examples=30)
    settings.register_profile("quick", unhurried, max_examples=60)
    settings.register_profile("ci", unhurried, max_examples=500)
    settings.register_profile("deep", unhurried, max_examples=20_000)
    # The same examples for every mutant, and no time for the smallest one that shows it.
    settings.register_profile(
        "mutation",
        unhurried,
        max_examples=60,
        print_blob=False,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
    )

    if settings.get_current_profile_name() == "default":  # else somebody chose one
        settings.load_profile("quick")
