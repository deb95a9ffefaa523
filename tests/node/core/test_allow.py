"""The node's own allow-list has the last word."""

import pytest

from iop_node.core.allow import AllowList, check_pattern
from iop_shared.ids import AdapterName
from iop_shared.link.messages import AdapterConfig

ALLOW = AllowList(
    ("mock", "vllm"), ("http://127.0.0.1:*", "http://localhost:8000", "http://[::1]:*", "https://*:443")
)


def config(**settings: object) -> AdapterConfig:
    return AdapterConfig(AdapterName("a"), "vllm", 1, settings)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:11434",
        "http://127.0.0.1:1/v1/",
        "http://127.0.0.1",
        "http://LOCALHOST:8000",
        "http://[::1]:99",
        "https://engine.example",
        "https://engine.example:443/x",
    ],
)
def test_what_a_pattern_covers_passes(url: str) -> None:
    assert list(ALLOW.problems_of(config(base_url=url))) == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1.evil.example:80",
        "http://127.0.0.1:80@evil.example/",
        "http://evil.example:80#127.0.0.1:80",
        "http://evil.example\\@127.0.0.1:80",
        "https://127.0.0.1:8443",
        "http://localhost:8001",
        "http://localhost",
        "ftp://127.0.0.1:21",
        "http://127.0.0.1:99999",
        "http://",
        "http:// 127.0.0.1:80",
        "file:///etc/passwd",
        "",
    ],
)
def test_what_no_pattern_covers_is_refused(url: str) -> None:
    assert len(list(ALLOW.problems_of(config(base_url=url)))) == 1


def test_the_sentences_name_the_value_and_what_is_allowed() -> None:
    forbidden = AdapterConfig(AdapterName("coder"), "cli", 1, {"base_url": "http://10.0.0.1:80/?key=1"})

    assert list(ALLOW.problems_of(forbidden)) == [
        "adapter 'coder': type 'cli' is not allowed on this node (allow.adapters in its own file: mock, vllm)",
        "adapter 'coder': base_url 'http://10.0.0.1:80/' is not allowed on this node (allow.base_urls in its own "
        "file: http://127.0.0.1:*, http://localhost:8000, http://[::1]:*, https://*:443)",
    ]
    assert list(ALLOW.problems_of(config(base_url=7))) == ["adapter 'a': base_url must be text, not int"]


def test_credentials_in_a_url_are_not_shown() -> None:
    (problem,) = ALLOW.problems_of(config(base_url="http://user:secret@evil.example:80"))

    assert "secret" not in problem
    assert "http://...@evil.example:80" in problem


@pytest.mark.parametrize("pattern", ["http://127.0.0.1:*", "https://engine.lab:8443", "http://[::1]:80"])
def test_a_pattern_has_scheme_host_and_port(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize(
    "pattern", ["127.0.0.1:80", "http://host", "http://host:0", "http://host:80/v1", "x://h:1"]
)
def test_what_is_no_pattern_says_the_form(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a pattern of base URLs") as caught:
        check_pattern(pattern)
    assert str(caught.value) == (
        f'{pattern!r} is not a pattern of base URLs: use scheme://host:port, for example "http://127.0.0.1:*"'
    )


FILES = AllowList(("vllm",), (), ("/etc/iop/engine.key", "/etc/iop/keys/*"))


@pytest.mark.parametrize("path", ["/etc/iop/engine.key", "/etc/iop/keys/a", None])
def test_a_file_that_the_owner_named_may_be_read(path: str | None) -> None:
    assert list(FILES.problems_of(config(api_key_file=path))) == []


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/etc/iop/keys/../../shadow",
        "/etc/iop/keys/deeper/a",
        "/etc/iop/keys//a",
        "/etc/iop/keys",
        "//etc/iop/engine.key",
        "engine.key",
        "",
    ],
)
def test_any_other_file_is_refused(path: str) -> None:
    assert list(FILES.problems_of(config(api_key_file=path))) == [
        f"adapter 'a': api_key_file {path!r} is not allowed on this node "
        "(allow.files in its own file: /etc/iop/engine.key, /etc/iop/keys/*)"
    ]


def test_the_rule_is_for_every_setting_that_names_a_file() -> None:
    assert list(ALLOW.problems_of(config(some_other_file="/etc/passwd"))) == [
        "adapter 'a': some_other_file '/etc/passwd' is not allowed on this node "
        "(allow.files in its own file: none)"
    ]
    assert list(ALLOW.problems_of(config(api_key_file=5))) == ["adapter 'a': api_key_file must be text, not int"]
