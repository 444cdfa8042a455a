"""Files of persons: fetched at once, under a cap, and served by short-lived refs (connector-protocol.md, Files)."""

import aiohttp

from shared.clock import Clock
from shared.config import Limits
from shared.files.names import clean_filename, sniff
from shared.files.port import FileStore, TooLargeError
from shared.net.download import DownloadError, download
from shared.net.guard import BlockedUrlError
from shared.records.model import Channel, FileRow
from shared.records.records import Records
from shared.wire.ids import namer
from shared.wire.packets import File


class InboundFiles:
    """Fetches what a platform offers by URL.

    Args:
        session: an HTTP client whose connector checks and pins every address.
        store: where the bytes go.
        records: where the refs are.
        limits: cap and lifetime.
        clock: time.
    """

    def __init__(
        self, session: aiohttp.ClientSession, store: FileStore, records: Records, limits: Limits, clock: Clock
    ) -> None:
        self._session = session
        self._store = store
        self._records = records
        self._limits = limits
        self._clock = clock
        self._new_ref = namer("file")

    async def fetch(self, channel: Channel, url: str, filename: str, mime_type: str) -> tuple[File | None, str]:
        """Returns the file, or a note for the text that says why there is none; a failed file never loses the text."""
        name = clean_filename(filename, "file")
        try:
            stored = await download(self._session, url, self._limits.upload_bytes, self._store)
        except TooLargeError:
            return None, f"[file {name} unavailable: file_too_large]"
        except BlockedUrlError:
            return None, f"[file {name} unavailable: blocked_url]"
        except (DownloadError, aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None, f"[file {name} unavailable: download_failed]"
        kind = sniff(stored.head, mime_type, name)
        expires_at = self._clock.now() + self._limits.ref_seconds
        row = FileRow(
            ref=self._new_ref() + self._store.secret(),
            channel=channel.channel_id,
            card=channel.card_id,
            direction="in",
            filename=name,
            mime_type=kind.mime_type,
            file_type=kind.file_type,
            byte_size=stored.byte_size,
            storage_key=stored.key,
            expires_at=expires_at,
        )
        await self._records.files.add(row)
        file = File(
            type=kind.file_type,
            file_ref=row.ref,
            filename=name,
            mime_type=kind.mime_type,
            byte_size=stored.byte_size,
            expires_at=int(expires_at * 1000),
            download_url=f"/files/refs/{row.ref}",
        )
        return file, ""
