"""The bus: one port, in process or RabbitMQ (docs/bus.md)."""
