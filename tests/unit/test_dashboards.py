import json
import re
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry

from shared.telemetry import metrics as m

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bsluice_\w+")


def known() -> set[str]:
    """Every sample name that some role serves."""
    registry = CollectorRegistry()
    for make in (m.BusMetrics, m.EdgeMetrics, m.DeliveryMetrics, m.StreamMetrics, m.FleetMetrics, m.ProcessMetrics):
        make(registry)
    names: set[str] = set()
    for family in registry.collect():
        match family.type:
            case "counter":
                names.add(f"{family.name}_total")
            case "histogram":
                names |= {f"{family.name}_{suffix}" for suffix in ("bucket", "count", "sum")}
            case _:
                names.add(family.name)
    return names


def test_the_board_names_metrics_that_exist() -> None:
    """A panel for every question of docs/operations.md, none of them empty for want of a metric."""
    board = json.loads((ROOT / "infra" / "grafana" / "sluice.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) > 10
    assert {name for expression in expressions for name in NAME.findall(expression)} <= known()


def test_the_alerts_name_metrics_that_exist_and_have_a_line_in_the_runbook() -> None:
    """docs/operations.md says under each alert's name what to do."""
    (group,) = yaml.safe_load((ROOT / "k8s" / "sluice" / "alerts.yaml").read_text())["groups"]
    runbook = (ROOT / "docs" / "operations.md").read_text()
    for rule in group["rules"]:
        assert set(NAME.findall(rule["expr"])) <= known(), rule["alert"]
        assert f"**{rule['alert']}**" in runbook
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert {"summary", "runbook"} <= set(rule["annotations"])


def test_the_page_lists_every_metric_and_no_other() -> None:
    """docs/operations.md is the list; histograms and counters by the name they are queried with."""
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page[page.index("| metric |") : page.index("What waits in the records")]
    listed = set(NAME.findall(table))
    served = {name for name in known() if not name.endswith(("_bucket", "_count", "_sum"))}
    histograms = {name.removesuffix("_bucket") for name in known() if name.endswith("_bucket")}
    assert listed == served | histograms
