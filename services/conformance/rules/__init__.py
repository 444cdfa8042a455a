"""The rules, by subject; each module ends in its table."""
