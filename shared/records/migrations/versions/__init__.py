"""Alembic's migrations, in the order of their numbers."""
