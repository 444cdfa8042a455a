"""The command `sluice`: wiring of the roles, and what operators and authors type."""
