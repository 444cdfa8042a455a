"""The Cards: `im.console`, `im.webhook`, `im.telegram`, `im.recording`."""

from importlib.metadata import PackageNotFoundError, version

from shared.cards.card import AuthFlow, Build, Card, FormField, Tool


def build_of() -> Build:
    """What runs here."""
    try:
        return Build(version("sluice"))
    except PackageNotFoundError:
        return Build("0.0.0")


def cards(*, recording: bool, build: Build) -> dict[str, Card]:
    """The Cards by id; the recording one only where it is switched on."""
    known = [console_card(build), webhook_card(build), telegram_card(build)]
    if recording:
        known.append(recording_card(build))
    return {card.card_id: card for card in known}


def console_card(build: Build) -> Card:
    """A person on a terminal or a WebSocket of ours."""
    return Card(
        card_id="im.console",
        version=build.version,
        name="Console",
        description="A person on a terminal or a WebSocket; replies stream in place.",
        provider="console",
        label="Console",
        build=build,
        tools=_sending("console"),
        connected_on_open=True,
    )


def webhook_card(build: Build) -> Card:
    """Signed POSTs, both ways."""
    url = FormField(
        name="url", label="URL", placeholder="https://example.com/hook", help_text="Finals are posted here, signed."
    )
    secret = FormField(
        name="secret",
        label="Signing secret",
        input_type="password",
        secret=True,
        help_text="whsec_ and the base64 of 24 to 64 bytes (Standard Webhooks).",
    )
    flow = AuthFlow(
        id="webhook", title="Webhook", description="Where finals go and how they are signed.", fields=(url, secret)
    )
    return Card(
        card_id="im.webhook",
        version=build.version,
        name="Webhook",
        description="Finals as signed webhooks; a person's messages come in the same way.",
        provider="webhook",
        label="Webhook",
        build=build,
        tools=_sending("webhook"),
        auth_flows=(flow,),
    )


def telegram_card(build: Build) -> Card:
    """A bot in a chat."""
    token = FormField(
        name="bot_token",
        label="Bot token",
        input_type="password",
        secret=True,
        placeholder="123456:ABC…",
        help_text="As @BotFather gives it.",
    )
    chat = FormField(
        name="chat_id",
        label="Chat",
        placeholder="-1001234567890",
        help_text="The number of a chat that the bot is in, or the @username of a public one.",
    )
    flow = AuthFlow(
        id="telegram", title="Telegram bot", description="Which bot writes, and where.", fields=(token, chat)
    )
    return Card(
        card_id="im.telegram",
        version=build.version,
        name="Telegram",
        description="A Telegram bot in a chat; replies stream in place.",
        provider="telegram",
        label="Telegram",
        build=build,
        tools=_sending("telegram"),
        auth_flows=(flow,),
    )


def recording_card(build: Build) -> Card:
    """The scripted platform of tests."""
    chat = FormField(name="chat", label="Chat", required=False, help_text="The channel's own id when left empty.")
    flow = AuthFlow(id="recording", title="Recording", description="Names the chat.", fields=(chat,))
    return Card(
        card_id="im.recording",
        version=build.version,
        name="Recording",
        description="A scripted platform that writes down every call.",
        provider="recording",
        label="Recording",
        build=build,
        tools=_sending("recording"),
        auth_flows=(flow,),
        connected_on_open=True,
    )


def _sending(provider: str) -> tuple[Tool, ...]:
    """A platform without threads has no reply tool: there is nothing that its `reply_ref` could name."""
    return (
        Tool(
            tool_id=f"{provider}_message_send",
            title="Send a message",
            description="Sends a text beside the reply.",
            arguments=("text",),
        ),
        Tool(
            tool_id=f"{provider}_file_send",
            title="Send a file",
            description="Sends an uploaded file, with a caption.",
            arguments=("file_ref",),
            optional=("caption",),
        ),
    )
