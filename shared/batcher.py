"""Group commit: what arrives while one flush is in flight becomes the next flush.

Everything here that costs a round trip (a publish, a ledger claim, a receipt) goes through a `Batcher`. Alone, an
item is flushed at once; under load the window is as long as the flush before it, so the batch grows with the load
and nothing has to be tuned.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class QueueFullError(Exception):
    """More is waiting than the batcher may hold; try again later."""


class Batcher(Generic[T, R]):
    """Gathers items for `flush`, at most one flush in flight.

    Args:
        flush: takes a batch in order of arrival and returns one result an item, in the same order. What it raises
            is raised to every caller of that batch.
        max_items: the most items in one flush.
        max_pending: the most items waiting; beyond it `add` raises `QueueFullError`.
    """

    def __init__(
        self, flush: Callable[[list[T]], Awaitable[Sequence[R]]], *, max_items: int = 1024, max_pending: int = 65_536
    ) -> None:
        self._flush = flush
        self._max_items = max_items
        self._max_pending = max_pending
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._worker: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many items wait for the next flush."""
        return len(self._waiting)

    async def add(self, item: T) -> R:
        """Returns the result of the flush that carried the item.

        Raises:
            QueueFullError: too many items wait.
        """
        return await self.put(item)

    def put(self, item: T) -> "asyncio.Future[R]":
        """Takes the item now, in the order of these calls; the future has what `add` returns, and raises alike."""
        if len(self._waiting) >= self._max_pending:
            raise QueueFullError
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._run(), name="batcher")
        return future

    async def close(self) -> None:
        """Waits until nothing is left to flush."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._max_items], self._waiting[self._max_items :]
                await self._flush_one([entry for entry in batch if not entry[1].cancelled()])
        finally:
            self._worker = None

    async def _flush_one(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        if not batch:
            return
        try:
            results = await self._flush([item for item, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - the callers of this batch decide what it means
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
