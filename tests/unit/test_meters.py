"""Histograms, labels and the settings of the port."""

import pytest

from txlayer.adapters.metrics import Histogram, with_few_labels
from txlayer.config import MetricsConfig, from_environ
from txlayer.errors import ConfigError


def test_a_histogram_counts_what_is_at_most_as_large_as_each_bound() -> None:
    sizes = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 7.0):
        sizes.observe(value)

    view = sizes.view()

    assert ((1.0, 2.0), (2, 3, 4), 9.5) == (view.bounds, view.counts, view.total)


def test_one_observation_may_stand_for_many() -> None:
    sizes = Histogram((1.0,))

    sizes.observe(0.5, weight=10)

    assert ((10, 10), 5.0) == (sizes.view().counts, sizes.view().total)


def test_few_names_keep_their_labels() -> None:
    assert {"a": 1, "b": 2} == with_few_labels({"a": 1, "b": 2}, 2)


def test_beyond_the_limit_the_largest_keep_their_labels_and_the_sum_stays() -> None:
    found = with_few_labels({"a": 1, "b": 5, "c": 3, "d": 1}, 2)

    assert {"b": 5, "c": 3, "other": 2} == found


def test_a_group_that_is_called_other_is_counted_with_the_others() -> None:
    assert {"other": 8, "b": 3} == with_few_labels({"other": 7, "b": 3, "c": 1}, 2)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_nothing_listens_unless_a_port_is_named() -> None:
    assert MetricsConfig(metrics_port=0, metrics_host="127.0.0.1") == from_environ(MetricsConfig, {})


def test_the_command_line_wins_over_the_environment() -> None:
    environ = {"TXLAYER_METRICS_PORT": "9000", "TXLAYER_METRICS_HOST": "::1"}

    assert MetricsConfig(metrics_port=9000, metrics_host="::1") == from_environ(MetricsConfig, environ)
    assert 0 == from_environ(MetricsConfig, environ, metrics_port=0).metrics_port
    assert "0.0.0.0" == from_environ(MetricsConfig, environ, metrics_host="0.0.0.0").metrics_host


@pytest.mark.parametrize("text", ["-1", "x", "65536", "9464.5", "", "٣"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a port|a number"):
        from_environ(MetricsConfig, {"TXLAYER_METRICS_PORT": text})


def test_workers_have_ports_that_follow_each_other() -> None:
    config = MetricsConfig(metrics_port=9464)

    assert [9464, 9465, 9466] == [config.of_worker(number).metrics_port for number in range(3)]
    assert 0 == MetricsConfig().of_worker(2).metrics_port


def test_a_worker_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="65536"):
        MetricsConfig(metrics_port=65535).of_worker(1)
