"""Delivery: lanes, the ledger's use, and the targets (design.md, The flow, 3)."""
