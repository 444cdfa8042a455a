"""The metrics of every role (prometheus_client). Low cardinality: never a channel, message or name as a label."""

from collections.abc import Iterator
from typing import Protocol, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

M = TypeVar("M", Counter, Histogram)
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0, 3600.0)


def render(registry: CollectorRegistry) -> bytes:
    """The text that Prometheus scrapes."""
    return generate_latest(registry)


class Published(Protocol):
    """What counts what it puts on the bus, as `shared.bus.outgoing.Outgoing` does."""

    published: int
    items: int
    lost: int


class BusMetrics(Collector):
    """What each part of the process has put on the bus; read when scraped, so that the hot path counts plain ints."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._watched: list[tuple[str, Published]] = []
        registry.register(self)

    def watch(self, role: str, published: Published) -> None:
        """Counts one more part."""
        self._watched.append((role, published))

    def collect(self) -> Iterator[Metric]:
        """See `Collector.collect`."""
        messages = CounterMetricFamily("sluice_bus_messages", "Messages that the bus has taken.", labels=["role"])
        items = CounterMetricFamily("sluice_bus_items", "Items in them.", labels=["role"])
        lost = CounterMetricFamily("sluice_bus_items_lost", "Items given up at closing.", labels=["role"])
        for role, published in self._watched:
            messages.add_metric([role], published.published)
            items.add_metric([role], published.items)
            lost.add_metric([role], published.lost)
        yield from (messages, items, lost)


class EdgeMetrics:
    """Of the edge."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.sockets = Gauge("sluice_edge_sockets", "Open sockets of xAgent.", registry=registry)
        self.connections = Counter("sluice_edge_connections", "Sockets opened so far.", registry=registry)


class ProcessMetrics:
    """Of every process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lag = Gauge(
            "sluice_event_loop_lag_seconds", "How late the event loop was at the last look.", registry=registry
        )


class FleetMetrics:
    """Of the fleet as a whole, told by the listener that leads; the others say nothing (NaN)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.outbox = Gauge("sluice_outbox_pending", "Persons' messages that xAgent has not taken.", registry=registry)
        self.outbox_age = Gauge("sluice_outbox_age_seconds", "Age of the oldest of them.", registry=registry)
        self.parked = Gauge("sluice_parked_messages", "Finals that wait for a later try.", registry=registry)
        self.parked_age = Gauge("sluice_parked_age_seconds", "Age of the oldest of them.", registry=registry)
        self.dead = Gauge("sluice_dead_letters_kept", "Dead letters on file.", registry=registry)
        self.depth = Gauge(
            "sluice_queue_messages", "Messages that wait in a queue.", ["group", "partition"], registry=registry
        )

    def silence(self) -> None:
        """Another one tells."""
        for gauge in (self.outbox, self.outbox_age, self.parked, self.parked_age, self.dead):
            gauge.set(float("nan"))
        self.depth.clear()


class DeliveryMetrics:
    """Of the delivery workers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._children: dict[tuple[object, tuple[str, ...]], object] = {}
        self._answers = Counter(
            "sluice_delivery_answers", "Finals answered.", ["card", "status", "code"], registry=registry
        )
        self._seconds = Histogram(
            "sluice_delivery_seconds", "From the edge to the answer.", ["card"], buckets=_BUCKETS, registry=registry
        )
        self._calls = Histogram(
            "sluice_target_call_seconds", "Calls of a platform.", ["card"], buckets=_BUCKETS, registry=registry
        )
        self._failures = Counter(
            "sluice_target_failures", "Calls that failed, by kind.", ["card", "kind"], registry=registry
        )
        self._dead = Counter("sluice_dead_letters", "Messages given up.", ["code"], registry=registry)
        self._shed = Counter("sluice_previews_shed", "Previews that were not shown.", ["card"], registry=registry)
        self.previews = Counter("sluice_previews", "Previews shown.", registry=registry)
        self.parks = Counter("sluice_parks", "Messages put aside for a later try.", registry=registry)
        self.parked = Gauge("sluice_lanes_parked", "Lanes with parked work.", registry=registry)

    def answered(self, card: str, status: str, code: str, seconds: float) -> None:
        """A final was answered."""
        self._child(self._answers, card, status, code).inc()
        self._child(self._seconds, card).observe(seconds)

    def called(self, card: str, seconds: float) -> None:
        """A platform took a part."""
        self._child(self._calls, card).observe(seconds)

    def failed(self, card: str, kind: str) -> None:
        """A call failed."""
        self._failures.labels(card, kind).inc()

    def dead(self, code: str) -> None:
        """A message was given up."""
        self._dead.labels(code).inc()

    def _child(self, metric: M, *labels: str) -> M:
        """The library's own look-up builds and locks each time; a delivery makes three."""
        key = (metric, labels)
        if key not in self._children:
            self._children[key] = metric.labels(*labels)
        return cast("M", self._children[key])

    def shed(self, card: str) -> None:
        """A preview was not shown."""
        self._shed.labels(card).inc()


class StreamMetrics:
    """Of the aggregators."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deltas = Counter("sluice_stream_deltas", "Deltas stored.", registry=registry)
        self.repeats = Counter("sluice_stream_repeats", "Deltas that came twice.", registry=registry)
        self.late = Counter("sluice_stream_late", "Deltas after their final.", registry=registry)
        self.windows = Counter("sluice_stream_windows", "Windows written to the state.", registry=registry)
        self._refused = Counter("sluice_stream_refused", "Deltas refused.", ["code"], registry=registry)
        self.open = Gauge("sluice_streams_open", "Streams held hot.", registry=registry)

    def refused(self, code: str) -> None:
        """A delta was refused."""
        self._refused.labels(code).inc()
