"""Credentials at rest: AES-GCM under keys of the operator, several at a time so that they can be rotated."""

import base64
import binascii
import hashlib
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
ID_BYTES = 4


class SealedError(Exception):
    """It was sealed under another key, for another context, or it was tampered with."""


class Keyring:
    """Keys: the first seals, all open."""

    def __init__(self, keys: list[bytes]) -> None:
        self._ciphers = {hashlib.sha256(b"sluice key id" + key).digest()[:ID_BYTES]: AESGCM(key) for key in keys}
        self._first = next(iter(self._ciphers))

    def __repr__(self) -> str:
        """Never shows a key."""
        return f"Keyring({len(self._ciphers)} keys)"

    @classmethod
    def parse(cls, value: str) -> "Keyring":
        """Reads SLUICE_SECRET_KEY.

        Raises:
            ValueError: a key is not 32 bytes in base64url; the message does not show it.
        """
        keys: list[bytes] = []
        for number, text in enumerate((part.strip() for part in value.split(",")), start=1):
            try:
                key = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            except (binascii.Error, ValueError):
                key = b""
            if len(key) != KEY_BYTES:
                raise ValueError(
                    f"SLUICE_SECRET_KEY: key {number} is not {KEY_BYTES} bytes in base64url; `sluice keys` makes one"
                )
            keys.append(key)
        return cls(keys)

    @staticmethod
    def generate() -> str:
        """A new key as text."""
        return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()

    def seal(self, plain: bytes, context: str) -> bytes:
        """Encrypts for a context (a channel id), without which it cannot be opened."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return self._first + nonce + self._ciphers[self._first].encrypt(nonce, plain, context.encode())

    def open(self, sealed: bytes, context: str) -> bytes:
        """Decrypts.

        Raises:
            SealedError: see there.
        """
        cipher = self._ciphers.get(sealed[:ID_BYTES])
        if cipher is None:
            raise SealedError("sealed under a key that is not among SLUICE_SECRET_KEY")
        nonce, body = sealed[ID_BYTES : ID_BYTES + NONCE_BYTES], sealed[ID_BYTES + NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, body, context.encode())
        except (InvalidTag, ValueError) as error:  # ValueError: it is cut short
            raise SealedError("it does not belong to this channel, or was changed") from error
