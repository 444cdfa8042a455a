"""Signing a channel in through a form, where the caller has given what to fill in."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from services.conformance.report import Options
from services.conformance.verdict import at, brief, skip

Ask = Callable[[str, str, dict[str, Any]], Awaitable[dict[str, Any]]]
_SLOWEST_POLL: Final = 1.0


def form_flow(card: dict[str, Any], wanted: str = "") -> dict[str, Any] | None:
    """The form flow of that id, or the Card's first; None when there is none."""
    flows = card.get("auth_flows")
    for flow in flows if isinstance(flows, list) else []:
        if at(flow, "type") == "form" and wanted in {"", at(flow, "id")}:
            return dict(flow)
    return None


def missing_fields(flow: dict[str, Any], given: dict[str, str]) -> list[str]:
    """The required fields that were not given."""
    fields = flow.get("fields")
    required = [at(one, "name") for one in fields if at(one, "required")] if isinstance(fields, list) else []
    return [str(name) for name in required if name not in given]


async def sign_in(ask: Ask, channel: str, card: dict[str, Any], options: Options) -> None:
    """Returns once the channel is authenticated; else skips the rule with the reason."""
    flow = form_flow(card, options.auth_flow)
    if flow is None:
        skip("the channel is not connected and the Card has no such form flow")
    if missing := missing_fields(flow, options.auth_input):
        skip(f"signing in needs {', '.join(missing)}")
    answer = await ask("auth.start", channel, {"flow_id": flow["id"], "input": options.auth_input})
    async with asyncio.timeout(options.timeout):
        while at(answer, "payload", "status") in {"pending", "scanned"}:
            await asyncio.sleep(min((at(answer, "payload", "poll_interval_millis") or 200) / 1000, _SLOWEST_POLL))
            session = {"flow_id": flow["id"], "auth_session_id": at(answer, "payload", "auth_session_id")}
            answer = await ask("auth.status", channel, session)
    if at(answer, "payload", "status") != "authenticated":
        skip(f"signing in ended with: {brief(answer)} {at(answer, 'payload', 'message') or ''}".rstrip())
