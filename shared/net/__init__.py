"""The way out to addresses that persons supply: checked after resolution, and connected to exactly."""
