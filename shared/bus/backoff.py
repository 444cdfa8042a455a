"""How long to wait before another try."""


def doubling(attempt: int, first: float, longest: float) -> float:
    """Seconds before the try after `attempt` tries."""
    return min(first * 2.0 ** min(attempt - 1, 20), longest)


def jittered(attempt: int, first: float, longest: float, chance: float) -> float:
    """Between half and the whole of the doubling wait, so that a fleet does not return in one moment.

    Args:
        attempt: tries so far.
        first: seconds after the first.
        longest: the most seconds.
        chance: a random number from 0 to 1.
    """
    return doubling(attempt, first, longest) * (0.5 + chance / 2)
