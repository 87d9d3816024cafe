from datetime import timedelta

import pytest
from codemend.rpc import describe_settings_error, write_ready_file
from pydantic import ValidationError

from sandbox_service.domain import DEFAULT_LIMITS, LIMIT_NAMES, MAXIMUM_LIMITS
from sandbox_service.settings import Settings


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.delenv(f"SANDBOX_{name.upper()}", raising=False)


def settings(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setenv(f"SANDBOX_{name.upper()}", value)
    return Settings()


def test_without_variables_the_domain_s_limits_hold(monkeypatch):
    made = settings(monkeypatch)
    assert made.default_limits == DEFAULT_LIMITS
    assert made.maximum_limits == MAXIMUM_LIMITS
    assert made.address == "127.0.0.1:50061"
    assert made.queue_size == 256
    assert made.concurrency >= 1
    assert made.grace == timedelta(seconds=30)


def test_every_limit_has_a_default_and_a_maximum_that_can_be_set(monkeypatch):
    for name in LIMIT_NAMES:
        monkeypatch.setenv(f"SANDBOX_DEFAULT_{name.upper()}", "2")
        monkeypatch.setenv(f"SANDBOX_MAX_{name.upper()}", "3")
    made = Settings()
    for name in LIMIT_NAMES:
        low, high = getattr(made.default_limits, name), getattr(made.maximum_limits, name)
        is_time = isinstance(low, timedelta)
        assert (low, high) == ((timedelta(seconds=2), timedelta(seconds=3)) if is_time else (2, 3))


def test_every_setting_says_what_it_is():
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize(
    ("text", "time"),
    [("7", 7), ("10s", 10), ("0.5", 0.5), ("250ms", 0.25), ("2m", 120), ("1.5 m", 90), ("0.1h", 360)],
)
def test_times_are_seconds_or_carry_a_unit(monkeypatch, text, time):
    assert settings(monkeypatch, default_wall_time=text).default_wall_time == timedelta(seconds=time)


@pytest.mark.parametrize(
    ("text", "size"), [("100", 100), ("64KiB", 65536), ("512MiB", 512 * 2**20), ("0.5 GiB", 2**29), ("9B", 9)]
)
def test_sizes_are_bytes_or_carry_a_unit(monkeypatch, text, size):
    assert settings(monkeypatch, default_memory_bytes=text).default_memory_bytes == size


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("default_wall_time", "10 parsecs", "500ms"),
        ("default_wall_time", "-1", "500ms"),
        ("default_wall_time", "0", "longer than zero"),
        ("default_wall_time", "1e400", "500ms"),
        ("default_memory_bytes", "512MB", "512MiB"),
        ("default_memory_bytes", "0", "greater than 0"),
        ("default_processes", "many", "integer"),
        ("concurrency", "0", "greater than or equal to 1"),
        ("queue_size", "-1", "greater than or equal to 0"),
        ("address", "nowhere", "host:port"),
        ("cell", "magic", "process"),
        ("log_level", "LOUD", "WARNING"),
        ("reflection", "perhaps", "boolean"),
    ],
)
def test_a_wrong_setting_is_named_by_its_variable_with_what_is_right(monkeypatch, name, value, word):
    with pytest.raises(ValidationError) as caught:
        settings(monkeypatch, **{name: value})
    text = describe_settings_error(caught.value, "SANDBOX_")
    assert f"SANDBOX_{name.upper()}" in text
    assert word in text


def test_a_default_over_its_maximum_is_refused_with_both_names(monkeypatch):
    with pytest.raises(ValidationError) as caught:
        settings(monkeypatch, default_processes="65", max_processes="64")
    assert "SANDBOX_DEFAULT_PROCESSES (65) is over SANDBOX_MAX_PROCESSES (64)" in describe_settings_error(
        caught.value, "SANDBOX_"
    )


def test_protections_are_a_list_with_commas(monkeypatch):
    assert settings(monkeypatch, require="pids_cgroup, own_uid,").require == {"pids_cgroup", "own_uid"}
    assert settings(monkeypatch, require="").require == frozenset()


def test_the_ready_file_appears_whole(tmp_path):
    write_ready_file(tmp_path / "ready", "127.0.0.1:5")
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]
    assert (tmp_path / "ready").read_text() == "127.0.0.1:5"
