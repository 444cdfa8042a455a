"""What is counted and logged. The names are data, all in one place."""
