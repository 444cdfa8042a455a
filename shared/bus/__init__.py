"""The bus between services: one port, in process and over AMQP."""
