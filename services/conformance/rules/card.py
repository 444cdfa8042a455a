"""The Card and the skill (connector-protocol.md, Control plane; IM v2 §2)."""

import re
from collections.abc import Iterable
from typing import Any, Final

from services.conformance.probe import Probe
from services.conformance.rule import Rule
from services.conformance.verdict import at, expect, skip
from shared.wire.packets import PROFILE, PROTOCOL_VERSION

_TOOL_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_SKILL_NAME: Final = re.compile(r"^name:\s*[\"']?([^\s\"']+)", re.MULTILINE)
_FORBIDDEN: Final = frozenset(
    {"base_url", "api_key", "token", "access_token", "secret_key", "password", "qr_code_text"}
)


async def schema(probe: Probe) -> None:
    """Schema, version and id."""
    expect(probe.card.get("schema") == "xagent.connector/v1", f"schema is {probe.card.get('schema')!r}")
    version = probe.card.get("protocol_version")
    expect(version == PROTOCOL_VERSION, f"protocol_version is {version!r}")
    expect(_is_text(probe.card.get("connector_card_id")), "connector_card_id is missing")


async def build(probe: Probe) -> None:
    """The build is told whole."""
    _expect_texts(probe.card.get("build"), "build", ("version", "git_tag", "git_rev", "build_time"))


async def connector(probe: Probe) -> None:
    """Who made it."""
    about = probe.card.get("connector")
    _expect_texts(about, "connector", ("name", "version", "vendor", "description"))
    expect(at(about, "name") and at(about, "version"), "connector.name or connector.version is empty")


async def supports(probe: Probe) -> None:
    """Target types, targets and mode."""
    about = probe.card.get("supports")
    expect("im" in _list(at(about, "target_types")), "supports.target_types does not hold im")
    mode = at(about, "user_channel_mode")
    expect(mode in {"single", "multiple"}, f"supports.user_channel_mode is {mode!r}")
    targets = _list(at(about, "targets"))
    expect(targets, "supports.targets is empty")
    for target in targets:
        _expect_texts(target, "a target", ("target_type", "provider", "label"))


async def profile(probe: Probe) -> None:
    """The profile is declared, once."""
    profiles = _list(at(probe.card, "supports", "profiles"))
    expect(PROFILE in profiles, f"supports.profiles is {profiles}")
    expect(len(set(profiles)) == len(profiles), f"supports.profiles repeats itself: {profiles}")


async def tools(probe: Probe) -> None:
    """Ids, profiles and titles of the tools."""
    declared = _list(probe.card.get("tools"))
    ids = [at(tool, "tool_id") for tool in declared]
    expect(len(set(ids)) == len(ids), f"tool ids repeat: {ids}")
    for tool in declared:
        tool_id = at(tool, "tool_id")
        expect(isinstance(tool_id, str) and _TOOL_ID.fullmatch(tool_id), f"tool_id {tool_id!r} is malformed")
        owner = at(tool, "profile")
        expect(owner in _list(at(probe.card, "supports", "profiles")), f"{tool_id}: profile {owner!r} is not supported")
        expect(_is_text(at(tool, "title")) and _is_text(at(tool, "description")), f"{tool_id}: no title or description")


async def tool_schemas(probe: Probe) -> None:
    """Every tool is told its channel by a required string."""
    for tool in _list(probe.card.get("tools")):
        tool_id, takes = at(tool, "tool_id"), at(tool, "input_schema")
        expect(at(takes, "type") == "object", f"{tool_id}: input_schema is no object schema")
        kind = at(takes, "properties", "connector_channel_id", "type")
        expect(kind == "string", f"{tool_id}: connector_channel_id has type {kind!r}")
        expect("connector_channel_id" in _list(at(takes, "required")), f"{tool_id}: connector_channel_id not required")
        expect(isinstance(at(tool, "output_schema"), dict), f"{tool_id}: no output_schema")


async def auth_flows(probe: Probe) -> None:
    """Ids and types of the flows."""
    flows = _list(probe.card.get("auth_flows"))
    ids = [at(flow, "id") for flow in flows]
    expect(len(set(ids)) == len(ids) and all(map(_is_text, ids)), f"auth flow ids are {ids}")
    for flow in flows:
        kind = at(flow, "type")
        expect(kind in {"qr_login", "form"}, f"{at(flow, 'id')}: type {kind!r}")
        expect(_is_text(at(flow, "target_type")), f"{at(flow, 'id')}: no target_type")


async def form_fields(probe: Probe) -> None:
    """Fields of the forms."""
    for field in _fields(probe):
        name = at(field, "name")
        expect(_is_text(name) and _is_text(at(field, "label")), f"a field lacks a name or a label: {name!r}")
        kind = at(field, "input_type")
        expect(kind in {"text", "password"}, f"{name}: input_type {kind!r}")
        expect(isinstance(at(field, "required"), bool), f"{name}: required is no Boolean")


async def secret_defaults(probe: Probe) -> None:
    """A secret has no default."""
    for field in _fields(probe):
        is_secret = at(field, "secret") or at(field, "input_type") == "password"
        expect(not (is_secret and at(field, "default_value")), f"{at(field, 'name')} is secret and has a default")


async def security(probe: Probe) -> None:
    """The security section."""
    about = probe.card.get("security")
    expect(_is_text(at(about, "trust_level")), "security.trust_level is missing")
    expect(isinstance(at(about, "api_key_required"), bool), "security.api_key_required is no Boolean")
    expect(isinstance(at(about, "data_classes"), list), "security.data_classes is no list")


async def no_secrets(probe: Probe) -> None:
    """The Card names no key, token or address of its own."""
    found = sorted(set(_card_keys(probe.card)) & _FORBIDDEN)
    expect(not found, f"the Card has {', '.join(found)}")


async def skill(probe: Probe) -> None:
    """The skill is Markdown whose name follows from the card id, or there is none."""
    async with probe.http.get(probe.base_url + "/skill.md") as response:
        text = await response.text(errors="replace")
        if response.status in {204, 404}:
            skip("there is no skill")
        expect(response.status == 200, f"skill.md answered {response.status}")  # noqa: PLR2004 - HTTP
    probe.record.hear_text(text, "skill.md")
    found = _SKILL_NAME.search(text)
    name = found.group(1) if found else None
    wanted = "connector-" + probe.card_id.replace(".", "-").replace("_", "-").lower()
    expect(name == wanted, f"the skill is named {name!r}, expected {wanted!r}")
    for tool in _list(probe.card.get("tools")):
        related = _list(at(tool, "related_skill_ids"))
        expect(not related or name in related, f"{at(tool, 'tool_id')} names skills {related}")


def _fields(probe: Probe) -> list[Any]:
    forms = [flow for flow in _list(probe.card.get("auth_flows")) if at(flow, "type") == "form"]
    if not forms:
        skip("there is no form flow")
    for flow in forms:
        expect(_list(at(flow, "fields")), f"{at(flow, 'id')}: a form without fields")
    return [field for flow in forms for field in at(flow, "fields")]


def _card_keys(value: object) -> Iterable[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in {"input_schema", "output_schema"}:
                yield key
                yield from _card_keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _card_keys(item)


def _expect_texts(value: object, where: str, keys: Iterable[str]) -> None:
    for key in keys:
        expect(isinstance(at(value, key), str), f"{where}.{key} is {at(value, key)!r}, not a string")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


_CARD: Final = "Common: the Card"
RULES: Final = (
    Rule("card.schema", _CARD, "The Card has its schema, protocol version 3.0 and a card id", schema),
    Rule("card.build", _CARD, "The Card tells its build", build),
    Rule("card.connector", _CARD, "The Card tells the connector's name, version, vendor and description", connector),
    Rule("card.supports", _CARD, "The Card supports target type im and names its targets", supports),
    Rule("card.profile", "IM v2 §2, §11.1", "The Card declares xagent.im.v2", profile),
    Rule("card.tools", _CARD, "Tools have unique well-formed ids and a supported profile", tools),
    Rule("card.tool_schemas", _CARD, "Every tool requires connector_channel_id", tool_schemas),
    Rule("card.auth_flows", _CARD, "Auth flows have unique ids and a known type", auth_flows),
    Rule("card.form_fields", _CARD, "Form fields are described whole", form_fields),
    Rule("card.secret_defaults", _CARD, "A secret field has no default", secret_defaults),
    Rule("card.security", _CARD, "The Card has its security section", security),
    Rule("card.no_secrets", _CARD, "The Card has no key, token or base URL", no_secrets),
    Rule("skill.name", "Common: skill.md", "The skill's name follows from the card id and is what tools name", skill),
)
