"""The edge: sockets of xAgent on one side, the bus on the other (design.md, The flow, 1)."""
