"""What can go wrong on the agent's side.

AgentError
├── ConnectionLost   the socket closed; says nothing about what was in flight (IM v2 §7)
├── HttpRefused      the control plane or the handshake answered with another status than success
├── RequestFailed    the Connector answered with an error
└── AnswerTimeout    nothing came back in time (a TimeoutError too)
"""

from typing import Any


class AgentError(Exception):
    """The root of this tree."""


class ConnectionLost(AgentError):
    """The socket is closed.

    Attributes:
        code: the WebSocket close code; 1006 when none was received.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"the socket closed with {code}")
        self.code = code


class HttpRefused(AgentError):
    """An HTTP answer that is no success.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, method: str, path: str, status: int, detail: str = "") -> None:
        super().__init__(f"{method} {path} answered {status}" + (f": {detail[:200]}" if detail else ""))
        self.status = status


class RequestFailed(AgentError):
    """The Connector refused.

    Attributes:
        code: the stable code of the protocol.
        packet: the whole answer.
    """

    def __init__(self, packet: dict[str, Any]) -> None:
        error = packet.get("error")
        facts = error if isinstance(error, dict) else {}
        self.code = str(facts.get("code", ""))
        self.packet = packet
        super().__init__(f"{packet.get('type')}: {self.code or 'no code'} {facts.get('message', '')}".rstrip())


class AnswerTimeout(AgentError, TimeoutError):
    """Nothing came in time.

    Attributes:
        awaited: what was waited for.
    """

    def __init__(self, awaited: str, seconds: float) -> None:
        super().__init__(f"awaited {awaited} for {seconds:g} s")
        self.awaited = awaited
