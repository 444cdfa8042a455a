from tests.support.postgres import postgres_server, postgres_url
from tests.support.rabbitmq import rabbitmq_server, rabbitmq_url
from tests.support.redis import redis_server, redis_url

__all__ = ["postgres_server", "postgres_url", "rabbitmq_server", "rabbitmq_url", "redis_server", "redis_url"]
