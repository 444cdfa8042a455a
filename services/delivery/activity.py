"""Activity: what the agent is doing right now, shown as well as the platform can (IM v2 §8).

It is beside the messages, never in their way: each channel has at most one call in flight, a clear comes after any
set still in flight, and a failure is counted and forgotten (field report 26).
"""

import asyncio
from dataclasses import dataclass, field

from services.delivery.targets.port import Binding, Target, TargetError
from shared.clock import Clock
from shared.telemetry.metrics import DeliveryMetrics

REFRESH = 4.0
"""Seconds after which a running activity is shown again; platforms let typing lapse after about five."""
IDLE = ("idle", "")


@dataclass(slots=True)
class _Shown:
    target: Target
    binding: Binding
    wanted: tuple[str, str]
    until: float
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    runner: asyncio.Task[None] | None = None


class ActivityBoard:
    """The activity of every channel.

    Args:
        lifetime: seconds after which an activity that nobody renewed is cleared.
        clock: time.
        metrics: failures are counted there.
    """

    def __init__(self, lifetime: float, clock: Clock, metrics: DeliveryMetrics) -> None:
        self._lifetime = lifetime
        self._clock = clock
        self._metrics = metrics
        self._shown: dict[str, _Shown] = {}

    def show(self, target: Target, binding: Binding, status: str, tool_name: str) -> None:
        """Replaces the state of the channel."""
        if status == "idle":
            self.clear(binding.channel)
            return
        until = self._clock.monotonic() + self._lifetime
        shown = self._shown.get(binding.channel)
        if shown is None:
            shown = self._shown[binding.channel] = _Shown(target, binding, (status, tool_name), until)
            shown.runner = asyncio.create_task(self._run(shown), name="activity")
            return
        shown.until = until
        if shown.wanted != (status, tool_name):
            shown.wanted = (status, tool_name)
            shown.changed.set()

    def clear(self, channel: str) -> None:
        """Nothing is going on any more."""
        shown = self._shown.get(channel)
        if shown is not None and shown.wanted != IDLE:
            shown.wanted = IDLE
            shown.changed.set()

    async def stop(self) -> None:
        """Clears everything that is shown."""
        runners = [shown.runner for shown in self._shown.values() if shown.runner is not None]
        for channel in list(self._shown):
            self.clear(channel)
        if runners:
            _, late = await asyncio.wait(runners, timeout=2.0)
            for runner in late:
                runner.cancel()

    async def _run(self, shown: _Shown) -> None:
        try:
            while True:
                shown.changed.clear()
                wanted = shown.wanted
                await self._call(shown, wanted)
                if shown.wanted == wanted == IDLE:
                    return
                if shown.wanted == wanted:
                    await self._wait(shown)
        finally:
            self._shown.pop(shown.binding.channel, None)

    async def _wait(self, shown: _Shown) -> None:
        left = shown.until - self._clock.monotonic()
        timer = asyncio.ensure_future(self._clock.sleep(min(REFRESH, max(left, 0.0))))
        changed = asyncio.ensure_future(shown.changed.wait())
        try:
            await asyncio.wait([timer, changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            changed.cancel()
        if self._clock.monotonic() >= shown.until:
            shown.wanted = IDLE

    async def _call(self, shown: _Shown, wanted: tuple[str, str]) -> None:
        try:
            await shown.target.activity(shown.binding, *wanted)
        except TargetError as error:
            self._metrics.failed(shown.binding.card, type(error).__name__)
