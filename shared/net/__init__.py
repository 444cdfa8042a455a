"""The way out to addresses that users supply: checked after resolution, and pinned."""
