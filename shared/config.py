"""Settings, read in one place: flags over `SLUICE_*` over a TOML file over the default (contract.md, Running it)."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]

KIB: Final = 1024
MIB: Final = 1024 * KIB


class Limits(Struct, frozen=True, kw_only=True):
    """Every cap and lifetime, with the defaults of contract.md. Sizes in bytes, times in seconds."""

    packet_bytes: Positive = MIB
    text_bytes: Positive = 256 * KIB
    files_per_message: Positive = 10
    upload_bytes: Positive = 50 * MIB
    handshake_seconds: Seconds = 10.0
    hello_seconds: Seconds = 10.0
    idle_seconds: Seconds = 75.0
    lease_seconds: Seconds = 3600.0
    stream_bytes: Positive = 256 * KIB
    stream_seconds: Seconds = 600.0
    streams_per_channel: Positive = 16
    stream_cleanup_seconds: Seconds = 30.0
    activity_seconds: Seconds = 60.0
    receipts_seconds: Seconds = 7 * 86400.0
    ref_seconds: Seconds = 3600.0
    inbound_seconds: Seconds = 3600.0
    inbound_per_channel: Positive = 1000
    inbound_ack_seconds: Seconds = 30.0
    retry_first_seconds: Seconds = 1.0
    retry_most_seconds: Seconds = 60.0
    outbound_attempts: Positive = 20
    outbound_seconds: Seconds = 3600.0
    park_after_seconds: Seconds = 3.0
    call_seconds: Seconds = 30.0
    send_buffer_bytes: Positive = 4 * MIB
    ping_seconds: Seconds = 30.0
    poison_deliveries: Positive = 3
    poison_attempts: Positive = 5


class Settings(Struct, frozen=True, kw_only=True):
    """What a role is started with. Empty means "not set"; `complete` fills in what follows from the rest."""

    host: str = "127.0.0.1"
    port: Port = 8080
    admin_port: Port | None = None
    public_url: str = ""
    api_key: str = ""
    secret_key: str = ""
    bus_url: str = "memory://"
    state_url: str = "memory://"
    records_url: str = ""
    files_url: str = ""
    data_dir: str = ".sluice"
    partitions: Positive = 8
    allow_private_targets: str = ""
    recording: bool = False
    telegram_api_url: str = "https://api.telegram.org"
    limits: Limits = Limits()

    @property
    def api_keys(self) -> tuple[str, ...]:
        """The keys that are accepted, the newest first."""
        return tuple(key.strip() for key in self.api_key.split(",") if key.strip())

    def __repr__(self) -> str:
        """Shows what an operator needs; never a key, nor a URL's password."""
        return f"Settings(host={self.host!r}, port={self.port}, partitions={self.partitions})"


class SettingError(ValueError):
    """A setting has a wrong value; the message names it and says what it takes."""


_LIMIT_PREFIX: Final = "SLUICE_LIMIT_"
_FIELDS: Final = {field.encode_name: field for field in msgspec.structs.fields(Settings) if field.name != "limits"}
_LIMITS: Final = {field.encode_name: field for field in msgspec.structs.fields(Limits)}


def load(flags: Mapping[str, object], env: Mapping[str, str], config: Path | None = None) -> Settings:
    """Reads the settings.

    Args:
        flags: what the command line gave, by field name; None means "not given".
        env: the environment; only `SLUICE_*` is looked at. A limit is `SLUICE_LIMIT_<NAME>`.
        config: a TOML file with the same names in lower case, limits in a table `[limits]`.

    Raises:
        SettingError: a value is wrong or a name is unknown.
    """
    table = _read_file(config) if config else {}
    limits_table = table.pop("limits", {})
    values: dict[str, Any] = {}
    for name, field in _FIELDS.items():
        given = flags.get(name)
        raw = given if given is not None else env.get(_env_name(name), table.get(name))
        if raw is not None:
            values[name] = _convert(raw, field.type, _env_name(name))
    known = {f"{_LIMIT_PREFIX}{name.upper()}" for name in _LIMITS}
    if unknown := sorted(name for name in env if name.startswith(_LIMIT_PREFIX) and name not in known):
        raise SettingError(f"{', '.join(unknown)}: no such limit; `sluice doctor` lists them")
    limits = {
        name: _convert(raw, field.type, f"{_LIMIT_PREFIX}{name.upper()}")
        for name, field in _LIMITS.items()
        if (raw := env.get(f"{_LIMIT_PREFIX}{name.upper()}", limits_table.get(name))) is not None
    }
    return Settings(**values, limits=Limits(**limits))


def _env_name(name: str) -> str:
    return f"SLUICE_{name.upper()}"


def _read_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingError(f"--config {path}: {error}") from error
    unknown = sorted(set(table) - set(_FIELDS) - {"limits"})
    unknown += sorted(f"limits.{name}" for name in set(table.get("limits", {})) - set(_LIMITS))
    if unknown:
        raise SettingError(f"--config {path}: unknown settings: {', '.join(unknown)}")
    return table


def _convert(raw: object, kind: Any, name: str) -> Any:
    if kind is bool and isinstance(raw, str):
        raw = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}.get(
            raw.lower(), raw
        )
    try:
        return msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingError(f"{name}: {error}") from error
