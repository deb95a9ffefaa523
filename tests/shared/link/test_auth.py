"""Tokens, proofs, and that no error shows a secret."""

import hashlib
import hmac
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.link_values import CHALLENGE, TOKEN, make_hello

from iop_shared.errors import BadRequest
from iop_shared.ids import BootId, NodeId, TokenId
from iop_shared.link.auth import (
    auth_message,
    is_token_id,
    make_proof,
    new_token,
    parse_token,
    stored_key,
    verify_proof,
)

WANTED = "a token is iopn_, 12 characters, _, 43 characters, as `iop-edge token add NODE` prints it"


def test_token_text_and_back() -> None:
    token = new_token()

    assert parse_token(f" {token.text}\n") == token
    assert len(token.text) == 61
    assert token.text.startswith(f"iopn_{token.token_id}_")
    assert is_token_id(token.token_id)
    assert new_token() != token


def test_token_hides_its_secret_from_its_repr() -> None:
    assert repr(TOKEN) == "Token(token_id='0123456789ab')"


ALTERED = f"the token holds characters that no token has, or was altered: {WANTED}"
SECRET_PART = TOKEN.text.rpartition("_")[2]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", f"the token is empty: {WANTED}"),
        (SECRET_PART, f"the token (43 characters) does not begin with iopn_: {WANTED}"),
        (TOKEN.text[:-5], f"the token has 56 characters instead of 61, so a part may be missing: {WANTED}"),
        (
            TOKEN.text.replace("0123", "ABCD"),
            ALTERED,
        ),
        # The last character carries two bits that no token has set.
        (TOKEN.text[:-1] + "9", ALTERED),
    ],
    ids=["empty", "no prefix", "cut", "upper case id", "stray bits"],
)
def test_malformed_token_is_described_and_never_shown(text: str, sentence: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_token(text)

    assert (str(caught.value), caught.value.code) == (sentence, "token_malformed")
    assert SECRET_PART[:20] not in str(caught.value)


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_token(text)


def test_proof_is_the_one_of_rfc_5802_with_sha_256() -> None:
    message = b"auth message"
    client_key = hmac.new(TOKEN.secret, b"Client Key", hashlib.sha256).digest()
    key = hashlib.sha256(client_key).digest()
    signature = hmac.new(key, message, hashlib.sha256).digest()
    expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))

    assert stored_key(TOKEN.secret) == key
    assert make_proof(TOKEN.secret, message) == expected
    assert verify_proof(key, message, expected)


@given(secret=st.binary(min_size=32, max_size=32), message=st.binary(max_size=50), other=st.binary(max_size=50))
def test_proof_holds_for_its_message_alone(secret: bytes, message: bytes, other: bytes) -> None:
    proof = make_proof(secret, message)

    assert verify_proof(stored_key(secret), message, proof)
    assert verify_proof(stored_key(secret), other, proof) == (other == message)


@pytest.mark.parametrize("proof", [b"", bytes(31), bytes(32), bytes(33), bytes(1000)], ids=len)
def test_wrong_proof_fails_for_known_and_unknown_tokens(proof: bytes) -> None:
    assert not verify_proof(stored_key(TOKEN.secret), b"m", proof)
    assert not verify_proof(None, b"m", proof)


def test_stored_key_alone_makes_no_proof() -> None:
    key = stored_key(TOKEN.secret)

    assert not verify_proof(key, b"m", make_proof(key, b"m"))


def test_unknown_token_is_refused_even_with_a_proof_for_the_stand_in_key() -> None:
    # The stand-in is public; nobody knows a client key behind it, but the answer must not depend on that.
    assert not verify_proof(None, b"m", make_proof(bytes(32), b"m"))


@pytest.mark.parametrize(
    "changed",
    [
        (replace(CHALLENGE, nonce=b"x" * 32), make_hello()),
        (replace(CHALLENGE, edge_id="edge-2"), make_hello()),
        (CHALLENGE, make_hello(node_nonce=b"x" * 32)),
        (CHALLENGE, make_hello(node_id=NodeId("gpu-2"))),
        (CHALLENGE, make_hello(boot_id=BootId("c" * 32))),
        (CHALLENGE, make_hello(token_id=TokenId("ba9876543210"))),
    ],
    ids=["edge nonce", "edge id", "node nonce", "node id", "boot id", "token id"],
)
def test_auth_message_covers_every_identity(changed: tuple) -> None:  # type: ignore[type-arg]
    assert auth_message(*changed) != auth_message(CHALLENGE, make_hello())


def test_auth_message_keeps_its_parts_apart() -> None:
    one = auth_message(CHALLENGE, make_hello(node_id=NodeId("ab"), boot_id=BootId("c")))
    two = auth_message(CHALLENGE, make_hello(node_id=NodeId("a"), boot_id=BootId("bc")))

    assert one != two
