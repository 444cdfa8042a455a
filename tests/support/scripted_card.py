"""The Card, skill and descriptor of the scripted Connector."""

from typing import Any

CARD_ID = "im.scripted"
PROFILE = "xagent.im.v2"
BUILD = {"version": "1.0.0", "git_tag": "v1.0.0", "git_rev": "abc", "build_time": "2026-01-01T00:00:00Z"}
SKILL = "---\nname: connector-im-scripted\ndescription: scripted\n---\nText.\n"


def make_card() -> dict[str, Any]:
    """A fresh Card, free to be spoiled."""
    return {
        "schema": "xagent.connector/v1",
        "protocol_version": "3.0",
        "build": dict(BUILD),
        "connector_card_id": CARD_ID,
        "connector": {"name": "Scripted", "version": "1.0.0", "vendor": "tests", "description": "An instrument"},
        "supports": {
            "user_channel_mode": "multiple",
            "target_types": ["im"],
            "targets": [{"target_type": "im", "provider": "scripted", "label": "Scripted"}],
            "profiles": [PROFILE],
        },
        "tools": [
            {
                "tool_id": "scripted_message_send",
                "profile": PROFILE,
                "title": "Send",
                "description": "Sends",
                "related_skill_ids": ["connector-im-scripted"],
                "input_schema": {
                    "type": "object",
                    "properties": {"connector_channel_id": {"type": "string"}, "text": {"type": "string"}},
                    "required": ["connector_channel_id", "text"],
                },
                "output_schema": {"type": "object"},
            }
        ],
        "auth_flows": [
            {
                "id": "login",
                "target_type": "im",
                "type": "form",
                "title": "Sign in",
                "description": "",
                "fields": [
                    {"name": "token", "label": "Token", "input_type": "password", "required": True, "secret": True}
                ],
            }
        ],
        "ui": {},
        "security": {"trust_level": "first_party", "api_key_required": True, "data_classes": ["messages"]},
    }


def make_descriptor(card: dict[str, Any], connector_id: str, channel: str, *, connected: bool) -> dict[str, Any]:
    """The Connection Descriptor of a channel."""
    return {
        "schema": "xagent.connection/v2",
        "connection": {
            "connector_card_id": card["connector_card_id"],
            "connector_id": connector_id,
            "connector_channel_id": channel,
            "target_type": "im",
            "profiles": [PROFILE],
            "status": "connected" if connected else "created",
        },
        "target": {"provider": "scripted", "display_name": "Scripted", "label": "", "account_hint": ""},
        "tools": [
            {
                "tool_id": "scripted_message_send",
                "status": "available",
                "target_permission_state": "granted",
                "reason": "",
            }
        ],
    }
