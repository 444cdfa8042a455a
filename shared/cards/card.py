"""Connector Cards and Connection Descriptors (connector-protocol.md, Control plane). Data and pure functions."""

from typing import Any

from msgspec import Struct

from shared.records.model import Channel
from shared.wire.packets import PROFILE, PROTOCOL_VERSION


class Build(Struct, frozen=True):
    """What was built, of what, when."""

    version: str
    git_tag: str = ""
    git_rev: str = ""
    build_time: str = ""


class FormField(Struct, frozen=True, kw_only=True):
    """A field of a form. A secret has no default."""

    name: str
    label: str
    input_type: str = "text"
    required: bool = True
    placeholder: str = ""
    help_text: str = ""
    secret: bool = False
    default_value: str = ""


class AuthFlow(Struct, frozen=True, kw_only=True):
    """A way to sign in."""

    id: str
    title: str
    description: str
    fields: tuple[FormField, ...]
    target_type: str = "im"
    type: str = "form"


class Tool(Struct, frozen=True, kw_only=True):
    """A tool that works today; `arguments` are text fields beside the channel id, the required ones first."""

    tool_id: str
    title: str
    description: str
    arguments: tuple[str, ...]
    optional: tuple[str, ...] = ()


class Card(Struct, frozen=True, kw_only=True):
    """A Connector.

    Attributes:
        connected_on_open: a new channel needs no sign-in. Ours; not in the Card's JSON.
    """

    card_id: str
    version: str
    name: str
    description: str
    provider: str
    label: str
    build: Build
    tools: tuple[Tool, ...] = ()
    auth_flows: tuple[AuthFlow, ...] = ()
    connected_on_open: bool = False

    @property
    def skill_id(self) -> str:
        """Lowercase hyphen-case, and what the tools name."""
        return "connector-" + self.card_id.replace(".", "-").replace("_", "-")

    def to_json(self) -> dict[str, Any]:
        """The Card as xAgent reads it. It holds no URL, key, token or identity."""
        return {
            "schema": "xagent.connector/v1",
            "protocol_version": PROTOCOL_VERSION,
            "build": _plain(self.build),
            "connector_card_id": self.card_id,
            "connector": {
                "name": self.name,
                "version": self.version,
                "vendor": "Sluice",
                "description": self.description,
            },
            "supports": {
                "user_channel_mode": "multiple",
                "target_types": ["im"],
                "targets": [{"target_type": "im", "provider": self.provider, "label": self.label}],
                "profiles": [PROFILE],
            },
            "tools": [self._tool(tool) for tool in self.tools],
            "auth_flows": [
                {**_plain(flow), "fields": [_plain(field) for field in flow.fields]} for flow in self.auth_flows
            ],
            "ui": {},
            "security": {"trust_level": "self_hosted", "api_key_required": True, "data_classes": ["messages", "files"]},
        }

    def _tool(self, tool: Tool) -> dict[str, Any]:
        names = ("connector_channel_id", *tool.arguments, *tool.optional)
        return {
            "tool_id": tool.tool_id,
            "profile": PROFILE,
            "title": tool.title,
            "description": tool.description,
            "related_skill_ids": [self.skill_id],
            "input_schema": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in names},
                "required": ["connector_channel_id", *tool.arguments],
            },
            "output_schema": {
                "type": "object",
                "properties": {
                    "status": {"type": "string"},
                    "receipts": {"type": "array", "items": {"type": "string"}},
                },
            },
        }


class ChannelView(Struct, frozen=True, kw_only=True):
    """What a Descriptor may show of a channel."""

    connector_id: str
    channel_id: str
    status: str
    display_name: str = ""
    label: str = ""
    account_hint: str = ""
    reason: str = ""

    @classmethod
    def of(cls, channel: Channel) -> "ChannelView":
        """Of a channel's row."""
        return cls(
            connector_id=channel.connector_id,
            channel_id=channel.channel_id,
            status=channel.status,
            display_name=channel.target.get("display_name", ""),
            label=channel.target.get("label", ""),
            account_hint=channel.target.get("account_hint", ""),
            reason=channel.reason,
        )


def descriptor(card: Card, view: ChannelView) -> dict[str, Any]:
    """The Connection Descriptor of a channel."""
    connected = view.status in ("connected", "degraded")
    return {
        "schema": "xagent.connection/v2",
        "connection": {
            "connector_card_id": card.card_id,
            "connector_id": view.connector_id,
            "connector_channel_id": view.channel_id,
            "target_type": "im",
            "profiles": [PROFILE],
            "status": view.status,
        },
        "target": {
            "provider": card.provider,
            "display_name": view.display_name or card.label,
            "label": view.label or card.label,
            "account_hint": view.account_hint,
        },
        "tools": [
            {
                "tool_id": tool.tool_id,
                "status": "available" if connected else "requires_reauth",
                "target_permission_state": "granted" if connected else "requires_reauth",
                "reason": view.reason if not connected else "",
            }
            for tool in card.tools
        ],
    }


def skill_markdown(card: Card) -> str:
    """The skill: how an agent uses the tools of this Connector."""
    lines = [f"- `{tool.tool_id}`: {tool.description}" for tool in card.tools]
    return "\n".join(
        [
            "---",
            f"name: {card.skill_id}",
            f"description: {card.description}",
            "---",
            "",
            f"# {card.name}",
            "",
            "Replies to a person are sent by themselves. Use a tool to send something beside the reply; each takes the",
            "`connector_channel_id` of the channel it is for.",
            "",
            *lines,
            "",
        ]
    )


def _plain(struct: Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
