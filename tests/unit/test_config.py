from pathlib import Path

import pytest

from shared.config import SettingError, load


def test_flags_come_before_the_environment_before_the_file_before_the_default(tmp_path: Path) -> None:
    """contract.md, Running it."""
    config = tmp_path / "sluice.toml"
    config.write_text('host = "file"\nport = 1\npartitions = 3\n[limits]\nhello_seconds = 7\ntext_bytes = 99\n')
    env = {"SLUICE_HOST": "env", "SLUICE_PORT": "2", "SLUICE_LIMIT_HELLO_SECONDS": "5"}
    settings = load({"host": "flag", "port": None}, env, config)
    assert (settings.host, settings.port, settings.partitions) == ("flag", 2, 3)
    assert (settings.limits.hello_seconds, settings.limits.text_bytes) == (5, 99)
    assert load({}, {}).partitions == 8


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"SLUICE_PORT": "eighty"}, "SLUICE_PORT"),
        ({"SLUICE_PARTITIONS": "0"}, "SLUICE_PARTITIONS"),
        ({"SLUICE_PARTITIONS": "1.5"}, "SLUICE_PARTITIONS"),
        ({"SLUICE_RECORDING": "perhaps"}, "SLUICE_RECORDING"),
        ({"SLUICE_LIMIT_TEXT_BYTES": "lots"}, "SLUICE_LIMIT_TEXT_BYTES"),
        ({"SLUICE_LIMIT_TXT_BYTES": "1"}, "SLUICE_LIMIT_TXT_BYTES"),
    ],
)
def test_a_wrong_value_is_refused_and_names_its_setting(env: dict[str, str], named: str) -> None:
    """A name that is no limit is a wrong one, not one to ignore."""
    with pytest.raises(SettingError, match=named):
        load({}, env)


def test_an_unknown_name_in_the_file_is_refused(tmp_path: Path) -> None:
    """A typing error must not pass for a default."""
    config = tmp_path / "sluice.toml"
    config.write_text("prot = 1\n[limits]\nhelo_seconds = 1\n")
    with pytest.raises(SettingError, match=r"limits\.helo_seconds") as raised:
        load({}, {}, config)
    assert "prot" in str(raised.value)


def test_settings_never_show_a_secret() -> None:
    """Neither a key, nor the password of a URL."""
    env = {"SLUICE_API_KEY": "sk_secret1", "SLUICE_SECRET_KEY": "secret2", "SLUICE_BUS_URL": "amqp://u:secret3@h/"}
    assert "secret" not in repr(load({}, env)).replace("_secret", "")
    assert load({}, {"SLUICE_API_KEY": " a , ,b "}).api_keys == ("a", "b")
