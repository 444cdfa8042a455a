"""The stream aggregator: deltas in, text in the shared state, "a preview is due" out (design.md, The flow, 4)."""
