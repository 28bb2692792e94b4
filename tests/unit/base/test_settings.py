"""The environment's table."""

import dataclasses
from pathlib import Path

import pytest

from forerun.base.errors import RequestError
from forerun.settings import VARIABLES, Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FORERUN_HOST", "a b"),
        ("FORERUN_HOST", "localhost:70000"),
        ("FORERUN_HOST", "https://elsewhere"),
        ("FORERUN_KEEP_ALIVE", "soon"),
        ("FORERUN_MAX_QUEUE", "0"),
        ("FORERUN_MAX_LOADED_MODELS", "0"),
        ("FORERUN_GPU_OVERHEAD", "much"),
        ("FORERUN_ORIGINS", "https://a/path,b"),
        ("FORERUN_CONTEXT_LENGTH", "3"),
        ("FORERUN_CONTEXT_LENGTH", "many"),
        ("FORERUN_CACHE_BYTES", "lots"),
        ("FORERUN_CACHE_BYTES", "-1"),
        ("FORERUN_DEVICE", "tpu"),
        ("FORERUN_DEVICE", "cpu:1"),
        ("FORERUN_THREADS", "0"),
        ("FORERUN_LOAD_TIMEOUT", "soon"),
        ("FORERUN_LOAD_TIMEOUT", "0"),
        ("FORERUN_CPU_KERNELS", "yes"),
        ("FORERUN_LOG", "loud"),
        ("FORERUN_LOG_FORMAT", "xml"),
    ],
)
def test_a_bad_value_is_one_line_with_variable_value_and_range(name: str, value: str) -> None:
    """08 ENV-1."""
    with pytest.raises(RequestError, match=rf"^{name} is '{value}'; it must be ") as caught:
        Settings.from_environment({name: value})
    assert "\n" not in str(caught.value)


def test_other_projects_variables_are_not_read() -> None:
    """08 ENV: OLLAMA_* variables are not read."""
    plain = Settings.from_environment({})
    assert Settings.from_environment({"OLLAMA_MODELS": "/elsewhere"}) == plain


def test_no_variable_tunes_speculation() -> None:
    """08 ENV-2, and 08 ENV-3: nothing about several sequences either."""
    assert not [name for name in VARIABLES if "DRAFT" in name or "PARALLEL" in name]


def test_a_child_sees_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the key, which only a server needs."""
    monkeypatch.setenv("FORERUN_API_KEY", "secret")
    given = {
        "FORERUN_HOST": "[::1]:8080",
        "FORERUN_MODELS": str(tmp_path),
        "FORERUN_KEEP_ALIVE": "-1",
        "FORERUN_MAX_QUEUE": "7",
        "FORERUN_MAX_LOADED_MODELS": "2",
        "FORERUN_GPU_OVERHEAD": "1GiB",
        "FORERUN_API_KEY": "secret",
        "FORERUN_ORIGINS": "https://a.example,app://b",
        "FORERUN_CONTEXT_LENGTH": "512",
        "FORERUN_CACHE_BYTES": "1.5GiB",
        "FORERUN_DEVICE": "cuda:1",
        "FORERUN_THREADS": "3",
        "FORERUN_LOAD_TIMEOUT": "90s",
        "FORERUN_CPU_KERNELS": "0",
        "FORERUN_LOG": "debug",
        "FORERUN_LOG_FORMAT": "json",
    }
    assert set(given) == set(VARIABLES)
    settings = Settings.from_environment(given)
    without_key = dataclasses.replace(settings, api_key=None)
    assert Settings.from_environment(settings.environment()) == without_key
    assert "secret" not in settings.environment().values()
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "expected"), [("2GiB", 2 << 30), ("1000", 1000), ("0", 0), ("", None)]
)
def test_the_budget_of_snapshots_is_a_size(text: str, expected: int | None) -> None:
    """02 STR-7: 0 is one, too, and reaches a child as such."""
    settings = Settings.from_environment({"FORERUN_CACHE_BYTES": text})
    assert settings.cache_bytes == expected
    assert Settings.from_environment(settings.environment()).cache_bytes == expected
