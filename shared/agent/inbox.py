"""A bounded queue that ends when its socket does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class _End:
    """Stands behind the last item."""


_END: Final = _End()


class Inbox(Generic[T]):
    """What came in and waits to be read.

    Args:
        limit: the most items kept.
        on_end: makes the exception that `get` raises after the last item.
    """

    def __init__(self, limit: int, on_end: Callable[[], Exception]) -> None:
        self._limit = limit
        self._on_end = on_end
        self._items: asyncio.Queue[T | _End] = asyncio.Queue()

    def offer(self, item: T) -> bool:
        """Puts it in; False when there is no room."""
        if self._items.qsize() >= self._limit:
            return False
        self._items.put_nowait(item)
        return True

    def push(self, item: T) -> None:
        """Puts it in, at the cost of the oldest when there is no room."""
        if not self.offer(item):
            self._items.get_nowait()
            self._items.put_nowait(item)

    def end(self) -> None:
        """Nothing more will come."""
        self._items.put_nowait(_END)

    async def get(self) -> T:
        """The next item; waits for it. Raises what `on_end` makes when there will be none."""
        item = await self._items.get()
        if isinstance(item, _End):
            self._items.put_nowait(item)
            raise self._on_end()
        return item

    def empty(self) -> bool:
        """Whether nothing waits."""
        return self._items.empty()

    async def __aiter__(self) -> AsyncIterator[T]:
        """All items until the end."""
        while True:
            item = await self._items.get()
            if isinstance(item, _End):
                self._items.put_nowait(item)
                return
            yield item
