"""The listener: whoever polls a platform, and the housekeeping that one process of the fleet does at a time."""
