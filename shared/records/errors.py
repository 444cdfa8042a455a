"""The errors of the records."""


class RecordsError(Exception):
    """An operation on the records did not end well."""


class RecordsUnavailable(RecordsError):
    """The database is away or busy; the same operation may be tried again."""


class NotOwned(RecordsError):
    """The channel belongs to another connector or Card."""
