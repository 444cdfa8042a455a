"""What the fleet shares while it works (leases, budgets, streams, the recording target), in Redis or in process."""
