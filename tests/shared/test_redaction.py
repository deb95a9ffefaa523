from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.redaction import is_secret_key, redact, redact_text

SECRET = "Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF"
TOKEN = f"iopn_abcdef234567_{SECRET}"


@pytest.mark.parametrize(
    "key",
    ["token", "TOKEN", "node_token", "authToken", "secret", "client_secret", "secretKey", "password", "api_key",
     "apiKey", "API_KEY", "apikey", "x-api-key", "Authorization", "cookie", "set-cookie", "private_key", "proof",
     "stored_key", "clientKey", "token_hash", "credentials"],
)  # fmt: skip
def test_keys_that_name_secrets(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    ["token_id", "tokens", "max_tokens", "prompt_tokens", "first_token_s", "token_file", "key", "public_key_id",
     "node_id", "keys", "", "tokenizer", "author"],
)  # fmt: skip
def test_keys_that_do_not(key: str) -> None:
    assert not is_secret_key(key)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"bad token {TOKEN}!", "bad token iopn_abcdef234567_***!"),
        ("half a token iopn_abc", "half a token iopn_***"),
        (f"Authorization: Bearer {SECRET}", "Authorization: Bearer ***"),
        ("key sk-abcdefgh12345678 was refused", "key sk-*** was refused"),
        ("http://me:hush@host:1/path", "http://me:***@host:1/path"),
        ("GET /x?token=hush&limit=5", "GET /x?token=***&limit=5"),
        ("Config(api_key='hush', n=1)", "Config(api_key='***', n=1)"),
        ('{"password": "hush"}', '{"password": "***"}'),
        ("max_tokens=5 first_token_s=0.5 token: missing", "max_tokens=5 first_token_s=0.5 token: missing"),
        ("127.0.0.1:7480 is already in use", "127.0.0.1:7480 is already in use"),
    ],
)
def test_secrets_are_cut_out_of_text(text: str, shown: str) -> None:
    assert redact_text(text) == shown
    assert redact_text(shown) == shown, "masking what is masked changes nothing"


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("token", "hush", "***"),
        ("token", 12345, "***"),
        ("api_key", True, True),
        ("token", None, None),
        ("max_tokens", 64, 64),
        ("prompt", "tell me", "<7 characters>"),
        ("messages", [{"role": "user"}], "<not shown>"),
        ("data", b"12345", "<5 bytes>"),
        ("settings", {"api_key": "hush", "base_url": "x"}, {"api_key": "***", "base_url": "x"}),
        ("args", ("a", TOKEN), ["a", "iopn_abcdef234567_***"]),
        ("error", ValueError(f"no {TOKEN}"), "no iopn_abcdef234567_***"),
    ],
)
def test_values_are_shown_as_their_key_allows(key: str, value: Any, shown: Any) -> None:
    assert redact(key, value) == shown


@given(before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_token_is_masked_wherever_it_stands(before: str, after: str) -> None:
    assert SECRET not in redact_text(before + TOKEN + after)


_PLANTED = st.recursive(
    st.sampled_from([TOKEN, f"x {TOKEN}", 5, None]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "token", "error", TOKEN]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(value=_PLANTED)
def test_a_token_is_masked_at_any_depth(value: Any) -> None:
    assert SECRET not in repr(redact("fields", value))
