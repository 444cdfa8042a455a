"""The xAgent side of `xagent.im.v2`, small: what dials a Connector Server."""
