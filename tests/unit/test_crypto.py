import base64

import pytest

from shared.crypto import Keyring, SealedError


def test_what_is_sealed_opens_in_its_context_only() -> None:
    ring = Keyring.parse(Keyring.generate())
    sealed = ring.seal(b"token", "cch_1")
    assert ring.open(sealed, "cch_1") == b"token"
    with pytest.raises(SealedError):
        ring.open(sealed, "cch_2")


def test_the_same_text_is_never_sealed_alike() -> None:
    ring = Keyring.parse(Keyring.generate())
    assert len({ring.seal(b"token", "c") for _ in range(100)}) == 100


def test_a_new_first_key_seals_and_the_old_one_still_opens() -> None:
    old, new = Keyring.generate(), Keyring.generate()
    before = Keyring.parse(old).seal(b"token", "c")
    rotated = Keyring.parse(f"{new}, {old}")
    assert rotated.open(before, "c") == b"token"
    after = rotated.seal(b"token", "c")
    assert Keyring.parse(new).open(after, "c") == b"token"
    with pytest.raises(SealedError):
        Keyring.parse(old).open(after, "c")


@pytest.mark.parametrize("place", range(0, 60, 3))
def test_a_changed_byte_or_a_cut_is_noticed(place: int) -> None:
    ring = Keyring.parse(Keyring.generate())
    sealed = ring.seal(b"x" * 40, "c")
    with pytest.raises(SealedError):
        ring.open(sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :], "c")
    with pytest.raises(SealedError):
        ring.open(sealed[:place], "c")


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_of_another_length_is_refused_without_being_shown(length: int) -> None:
    wrong = base64.urlsafe_b64encode(b"k" * length).decode()
    with pytest.raises(ValueError, match="SLUICE_SECRET_KEY: key 2") as refused:
        Keyring.parse(f"{Keyring.generate()},{wrong}")
    assert not wrong or wrong not in str(refused.value)


@pytest.mark.parametrize("wrong", ["", "not base64!", "ключ", "a,b"])
def test_what_is_no_key_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="SLUICE_SECRET_KEY"):
        Keyring.parse(wrong)


def test_a_key_may_come_without_its_padding() -> None:
    key = Keyring.generate()
    sealed = Keyring.parse(key).seal(b"token", "c")
    assert Keyring.parse(key.rstrip("=")).open(sealed, "c") == b"token"


def test_a_keyring_never_shows_a_key() -> None:
    key = Keyring.generate()
    assert key.rstrip("=") not in repr(Keyring.parse(key))
