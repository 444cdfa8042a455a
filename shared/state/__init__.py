"""What the fleet shares while it works: leases, stream text and the recording target, in Redis or in process."""
