"""What every service stands on: the wire, the bus, the state, the records. Never imports `services`."""
