"""Alembic's command, apart from the rest: it takes a third of a role's start to import, and is seldom needed."""

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy.engine import URL

_alembic = threading.Lock()  # it keeps what it is doing in globals of the process


def upgrade(url: URL) -> None:
    """Brings the database to the newest version; blocks."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["url"] = url
    with _alembic:
        command.upgrade(config, "head")
