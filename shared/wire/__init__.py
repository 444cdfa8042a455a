"""The wire contract: packets, their one decoder, batches and ids (connector-protocol.md, IM v2)."""
