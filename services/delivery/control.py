"""Sign-in, sign-out and tools: what changes a channel, done in its lane (connector-protocol.md, Data plane)."""

from collections.abc import Awaitable, Callable
from typing import Any

from services.delivery.answers import Answers
from services.delivery.channels import Channels, Known
from services.delivery.targets.port import SignInError, Target, TargetError
from shared.cards.card import ChannelView, descriptor
from shared.clock import Clock
from shared.records.model import AuthSession
from shared.records.records import Records
from shared.wire import replies
from shared.wire.ids import namer
from shared.wire.items import Item
from shared.wire.packets import AuthCancel, AuthLogout, AuthStart, AuthStatus

SESSION_SECONDS = 600.0
ControlPacket = AuthStart | AuthStatus | AuthCancel | AuthLogout


class Control:
    """Answers the control packets that need the platform.

    Args:
        targets: by connector_card_id.
        channels: bindings.
        records: sign-in sessions.
        answers: the way back.
        clock: time.
    """

    def __init__(
        self,
        targets: dict[str, Target],
        channels: Channels,
        records: Records,
        answers: Answers,
        clock: Clock,
    ) -> None:
        self._targets = targets
        self._channels = channels
        self._records = records
        self._answers = answers
        self._clock = clock
        self._new_session_id = namer("auth")

    async def handle(self, item: Item, packet: ControlPacket) -> None:
        """Performs one control packet and answers it."""
        known = await self._channels.fresh(item.channel)
        if known is None:
            await self._fail(item, packet, "connection_not_found", "the channel is not registered")
            return
        match packet:
            case AuthStart():
                await self._start(item, packet, known)
            case AuthStatus():
                await self._with_session(item, packet, packet.payload.auth_session_id, self._status)
            case AuthCancel():
                await self._cancel(item, packet)
            case AuthLogout():
                await self._logout(item, packet, known)

    async def unregister(self, item: Item) -> None:
        """The lease of the connector is over: the channel signs out and goes."""
        known = await self._channels.fresh(item.channel)
        if known is not None:
            await self._sign_out(known)
            await self._records.channels.delete(item.channel)
        self._channels.forget(item.channel)

    async def _start(self, item: Item, packet: AuthStart, known: Known) -> None:
        target, flow_id = self._targets[item.card], packet.payload.flow_id
        if all(flow.id != flow_id for flow in target.card.auth_flows):
            await self._fail(item, packet, "unknown_flow", "the Card has no such auth flow")
            return
        status, message = "authenticated", ""
        try:
            signed_in = await target.sign_in(item.channel, flow_id, packet.payload.input)
        except SignInError as error:
            status, message = "failed", str(error)
        except TargetError as error:
            status, message = "failed", f"the platform could not be asked: {error}"
        else:
            known = await self._channels.bind(item.channel, "connected", signed_in) or known
        session = AuthSession(
            self._new_session_id(), item.channel, flow_id, status, message, self._clock.now() + SESSION_SECONDS
        )
        await self._records.auth.save(session)
        await self._reply(item, packet, self._session(session, known, target))

    async def _status(self, item: Item, packet: AuthStatus, session: AuthSession) -> None:
        known = await self._channels.get(item.channel)
        if known is not None:
            await self._reply(item, packet, self._session(session, known, self._targets[item.card]))

    async def _with_session(
        self,
        item: Item,
        packet: AuthStatus,
        session_id: str,
        then: Callable[[Item, AuthStatus, AuthSession], Awaitable[None]],
    ) -> None:
        session = await self._records.auth.get(session_id)
        if session is None or session.channel != item.channel:
            await self._fail(item, packet, "auth_session_not_found", "no such sign-in on this channel")
        else:
            await then(item, packet, session)

    async def _cancel(self, item: Item, packet: AuthCancel) -> None:
        session = await self._records.auth.get(packet.payload.auth_session_id)
        if session is None or session.channel != item.channel:
            await self._reply(item, packet, {"status": "not_found", "auth_status": "unauthenticated"})
        else:  # a form is checked at once, so there is never anything left to cancel
            await self._reply(item, packet, {"status": "ignored", "auth_status": session.status})

    async def _logout(self, item: Item, packet: AuthLogout, known: Known) -> None:
        await self._sign_out(known)
        card = self._targets[item.card].card
        status = "connected" if card.connected_on_open else "created"
        await self._records.channels.bind(item.channel, status, {}, b"")
        known = await self._channels.fresh(item.channel) or known
        view = descriptor(card, ChannelView.of(known.channel))
        await self._reply(item, packet, {"status": "ok", "connection_descriptor": view})

    async def _sign_out(self, known: Known) -> None:
        try:
            await self._targets[known.channel.card_id].sign_out(known.binding)
        except TargetError:
            return  # the credential is forgotten here whatever the platform says

    def _session(self, session: AuthSession, known: Known, target: Target) -> dict[str, Any]:
        return {
            "connector_channel_id": session.channel,
            "flow_id": session.flow_id,
            "auth_session_id": session.session_id,
            "status": session.status,
            "message": session.message,
            "expires_at": int(session.expires_at * 1000),
            "poll_interval_millis": 1000,
            "connection_descriptor": descriptor(target.card, ChannelView.of(known.channel)),
        }

    async def _reply(self, item: Item, packet: ControlPacket, payload: dict[str, Any]) -> None:
        kind = f"{packet.__struct_config__.tag}.ack"
        raw = replies.packet(
            kind, payload, channel=item.channel, request_id=packet.request_id, reply_to=packet.packet_id
        )
        await self._answers.reply(item, raw)

    async def _fail(self, item: Item, packet: ControlPacket, code: str, message: str) -> None:
        kind = f"{packet.__struct_config__.tag}.ack"
        raw = replies.packet(
            kind,
            None,
            channel=item.channel,
            request_id=packet.request_id,
            reply_to=packet.packet_id,
            error=replies.ErrorBody(code, message),
        )
        await self._answers.reply(item, raw)
