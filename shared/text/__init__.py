"""Text: the one policy for what cannot be shown, and where to cut."""
