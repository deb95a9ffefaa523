"""What the configuration of a vllm adapter may say, and every sentence about what it may not."""

from pathlib import Path
from typing import Any

import pytest

from iop_node.adapters import vllm
from iop_node.adapters.vllm_settings import VllmSettings, read_settings
from iop_shared.errors import InvalidConfig
from iop_shared.ids import AdapterName

NAME = AdapterName("local")
URL = "http://127.0.0.1:8000"


def problems(**settings: Any) -> list[str]:
    """Returns the problems of `settings`."""
    with pytest.raises(InvalidConfig) as caught:
        vllm.build(NAME, 1, settings)
    assert caught.value.source == "adapter local"
    return caught.value.problems


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (URL, URL),
        (URL + "/", URL),
        (URL + "/v1", URL),
        (URL + "/v1/", URL),
        ("https://gpu-1.lan/engine/v1", "https://gpu-1.lan/engine"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_base_url_with_or_without_v1(given: str, kept: str) -> None:
    assert read_settings(NAME, {"base_url": given}).base_url == kept


def test_defaults() -> None:
    settings = read_settings(NAME, {"base_url": URL, "connect_timeout_s": 2})

    assert settings == VllmSettings(
        base_url=URL,
        connect_timeout_s=2.0,
        first_byte_timeout_s=300.0,
        idle_timeout_s=120.0,
        probe_timeout_s=3.0,
        health_path="/health",
    )
    assert settings.read_api_key() is None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, 'base_url is missing; write for example base_url = "http://127.0.0.1:8000"'),
        ({"base_url": 8000}, "base_url = 8000 should be a valid string"),
        (
            {"base_url": "127.0.0.1:8000"},
            "base_url = '127.0.0.1:8000' is no http or https URL with a host; write for example http://127.0.0.1:8000",
        ),
        (
            {"base_url": "ftp://host"},
            "base_url = 'ftp://host' is no http or https URL with a host; write for example http://127.0.0.1:8000",
        ),
        (
            {"base_url": "http://host:99999"},
            "base_url = 'http://host:99999' is no URL; write for example http://127.0.0.1:8000",
        ),
        (
            {"base_url": "http://user:secret@host"},
            "base_url = '***@host' has a user or password in it; use api_key or api_key_file instead",
        ),
        (
            {"base_url": URL + "?a=1"},
            f"base_url = '{URL}?a=1' has a query or fragment; leave everything from ? or # away",
        ),
        ({"base_url": URL, "base_ulr": 1}, "unknown key 'base_ulr': did you mean 'base_url'?"),
        ({"base_url": URL, "idle_timeout_s": 0}, "idle_timeout_s = 0 should be greater than 0"),
        ({"base_url": URL, "idle_timeout_s": "9"}, "idle_timeout_s = '9' should be a valid number"),
        (
            {"base_url": URL, "probe_timeout_s": 1e9},
            "probe_timeout_s = 1000000000.0 should be less than or equal to 86400",
        ),
        ({"base_url": URL, "health_path": "health"}, "health_path = 'health' must be empty or begin with \"/\""),
        ({"base_url": URL, "api_key": ["sk-secret"]}, "api_key = *** should be a valid string"),
        (
            {"base_url": URL, "api_key_file": "key"},
            "api_key_file = 'key' must be an absolute path on the node's machine",
        ),
        (
            {"base_url": URL, "api_key": "sk-secret", "api_key_file": "/k"},
            "api_key and api_key_file are both set; keep one of them",
        ),
        ({"base_url": URL, "targets": "tiny"}, "targets = 'tiny' should be a valid list"),
        (
            {"base_url": URL, "targets": ["a\n"]},
            "targets = ['a\\n'] has a name that cannot be used: target 'a\\n' (2 characters) is not valid: "
            "use 1 to 256 printable characters",
        ),
        ({"base_url": URL, "aliases": {"a": 1}}, "aliases.a = 1 should be a valid string"),
    ],
)
def test_every_problem_in_a_sentence(settings: dict[str, Any], problem: str) -> None:
    assert problems(**settings) == [problem]


def test_all_problems_at_once_and_no_secret_in_them() -> None:
    found = problems(base_url="x", api_key=["sk-secret"], idle_timeout_s=-1, nonsense=True)

    assert len(found) == 4
    assert not any("sk-secret" in problem for problem in found)


def test_the_key_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-from-file\n")
    path.chmod(0o600)

    settings = read_settings(NAME, {"base_url": URL, "api_key_file": str(path)})

    assert settings.read_api_key() == "sk-from-file"


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-from-file\n")
    path.chmod(0o644)

    with pytest.raises(InvalidConfig) as caught:
        vllm.build(NAME, 1, {"base_url": URL, "api_key_file": str(path)})

    assert str(caught.value) == f"{path}: may be read by others (mode 0644); run: chmod 600 {path}"


@pytest.mark.parametrize("key", ["sk two", "sk\nline", "schlüssel", ""])
def test_a_key_that_is_no_header_value_is_refused(key: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        vllm.build(NAME, 1, {"base_url": URL, "api_key": key})

    assert str(caught.value) == "api_key: holds no usable key: it must be printable ASCII without spaces"


def test_no_secret_in_the_repr() -> None:
    assert "sk-secret" not in repr(read_settings(NAME, {"base_url": URL, "api_key": "sk-secret"}))
