"""The setting of the bus is checked before anything is opened, and its password is never told."""

import pytest

from shared.bus.memory import MemoryBus
from shared.bus.open import open_bus
from shared.bus.port import Unavailable
from shared.clock import ManualClock


async def test_memory_opens_the_bus_in_process() -> None:
    async with open_bus("memory://", ManualClock()) as bus:
        assert isinstance(bus, MemoryBus)
        assert bus.ready()
    assert not bus.ready()


@pytest.mark.parametrize("url", ["", "redis://u:hunter2@h", "amqp://", "amqp://u:hunter2@h:port/", "amqp://[::1"])
async def test_another_address_names_the_setting_and_not_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="SLUICE_BUS_URL") as caught:
        await open_bus(url, ManualClock()).__aenter__()
    assert "hunter2" not in str(caught.value)


async def test_a_broker_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await open_bus("amqp://guest:guest@127.0.0.1:1/", ManualClock()).__aenter__()
