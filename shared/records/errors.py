"""The errors of the records."""


class RecordsError(Exception):
    """An operation on the records did not end well."""


class RecordsUnavailable(RecordsError):  # noqa: N818 - a condition, as its siblings of the bus and the state
    """The database is away or busy; the same operation may be tried again."""


class NotOwned(RecordsError):  # noqa: N818 - see above
    """The channel belongs to another connector or Card."""
