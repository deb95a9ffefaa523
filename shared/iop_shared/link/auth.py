"""Node tokens and the proof that a node holds one. Pure.

A token is `iopn_<token id>_<secret>`. The node keeps it; the edge keeps the token id and the stored key:

    client key  = HMAC-SHA256(secret, "Client Key")           (names as in RFC 5802, section 3)
    stored key  = SHA-256(client key)
    signature   = HMAC-SHA256(stored key, auth message)
    proof       = client key XOR signature

The auth message holds both nonces and every identity, so a proof is good for one link alone. From the wire
one learns neither the secret nor the stored key, and the stored key alone makes no proof: whoever reads the
edge's database cannot play a node.
"""

import base64
import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from typing import Final

from iop_shared.errors import BadRequest
from iop_shared.ids import TokenId
from iop_shared.link.messages import Challenge, Hello

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
SECRET_BYTES: Final = 32
_CLIENT_KEY: Final = b"Client Key"
_DOMAIN: Final = b"iop link proof v1"
_TOKEN: Final = re.compile(r"iopn_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_TOKEN_ID: Final = re.compile(r"[a-z0-9]{12}")
# Verified against when a token id is unknown, so that the answer takes as long as for a known one.
_NO_KEY: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class Token:
    """A node's token. Its secret is in no repr; `text` is what a person copies."""

    token_id: TokenId
    secret: bytes = field(repr=False)

    @property
    def text(self) -> str:
        """The whole token, secret included: for the one who asked for it, never for a log."""
        return f"iopn_{self.token_id}_{base64.urlsafe_b64encode(self.secret).decode().rstrip('=')}"


def new_token() -> Token:
    """Returns a fresh token from the system's randomness."""
    return Token(TokenId(os.urandom(6).hex()), os.urandom(SECRET_BYTES))


def parse_token(text: str) -> Token:
    """Returns the token in `text`; surrounding blanks do not matter.

    Raises:
        BadRequest: code `token_malformed`, with what is wrong but never with the text itself.
    """
    text = text.strip()
    found = _TOKEN.fullmatch(text)
    if found is not None:
        secret = base64.urlsafe_b64decode(found[2] + "=")
        token = Token(TokenId(found[1]), secret)
        if token.text == text:  # the last character carries two bits that must be zero
            return token
    raise BadRequest(_describe_malformed(text), param="token", code="token_malformed")


def is_token_id(text: str) -> bool:
    """Whether `text` has the form of a token id."""
    return _TOKEN_ID.fullmatch(text) is not None


def stored_key(secret: bytes) -> bytes:
    """Returns what an edge keeps of a token: 32 bytes that verify proofs and can make none."""
    return hashlib.sha256(_client_key(secret)).digest()


def auth_message(challenge: Challenge, hello: Hello) -> bytes:
    """Returns what a proof covers; the proof in `hello` does not matter."""
    parts = (
        challenge.nonce,
        hello.node_nonce,
        hello.node_id.encode(),
        hello.boot_id.encode(),
        hello.token_id.encode(),
        challenge.edge_id.encode(),
    )
    # Lengths, so that no two different lists of parts give the same bytes.
    return _DOMAIN + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def make_proof(secret: bytes, message: bytes) -> bytes:
    """Returns the proof that its maker holds `secret`, for the auth message `message`."""
    client_key = _client_key(secret)
    return _xor(client_key, _signature(hashlib.sha256(client_key).digest(), message))


def verify_proof(key: bytes | None, message: bytes, proof: bytes) -> bool:
    """Whether `proof` was made with the secret behind the stored key `key`, for `message`.

    None for an unknown or revoked token: the same work is done and the answer is False, so that the time
    taken does not tell which token ids exist.
    """
    known = key if key is not None else _NO_KEY
    client_key = _xor(proof.ljust(PROOF_BYTES, b"\0")[:PROOF_BYTES], _signature(known, message))
    matches = hmac.compare_digest(hashlib.sha256(client_key).digest(), known)
    return matches and key is not None and len(proof) == PROOF_BYTES


def _client_key(secret: bytes) -> bytes:
    return hmac.digest(secret, _CLIENT_KEY, "sha256")


def _signature(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(PROOF_BYTES, "big")


def _describe_malformed(text: str) -> str:
    wanted = "a token is iopn_, 12 characters, _, 43 characters, as `iop-edge token add NODE` prints it"
    if not text:
        return f"the token is empty: {wanted}"
    if not text.startswith("iopn_"):
        return f"the token ({len(text)} characters) does not begin with iopn_: {wanted}"
    if len(text) != len("iopn_") + 12 + 1 + 43:
        return f"the token has {len(text)} characters instead of 61, so a part may be missing: {wanted}"
    return f"the token holds characters that no token has, or was altered: {wanted}"
