"""A wrong value is refused before anything is installed, and the message names it."""

import json
from typing import Any

import helm_python
import jsonschema
import pytest
import yaml

from shared.config import Limits
from tests.chart.charts import CASES, CHART, merged, render, values_of

SCHEMA = json.loads((CHART / "values.schema.json").read_text())

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("an unknown key", {"replicas": 3}),
    ("a key with a typing error", {"exisitingSecret": "sluice"}),
    ("an unknown role", {"roles": {"editor": {}}}),
    ("an unknown key of a role", {"roles": {"edge": {"replica": 3}}}),
    ("replicas in words", {"defaults": {"replicas": "two"}}),
    ("negative replicas", {"defaults": {"replicas": -1}}),
    ("half a replica", {"roles": {"edge": {"replicas": 1.5}}}),
    ("no preStop", {"defaults": {"preStopSeconds": 0}}),
    ("no time to drain", {"roles": {"delivery": {"drainSeconds": 0}}}),
    ("the latest image", {"image": {"tag": "latest"}}),
    ("a tag with a space", {"image": {"tag": "0.1 "}}),
    ("a short digest", {"image": {"digest": "sha256:abc"}}),
    ("no repository", {"image": {"repository": ""}}),
    ("an unknown pull policy", {"image": {"pullPolicy": "Sometimes"}}),
    ("a Secret's name in capitals", {"existingSecret": "Sluice"}),
    ("no partitions", {"partitions": 0}),
    ("a number as text", {"partitions": "8"}),
    ("an unknown limit", {"limits": {"packet_size": 1}}),
    ("a limit of nothing", {"limits": {"call_seconds": 0}}),
    ("a broken limit of bytes", {"limits": {"packet_bytes": 1.5}}),
    ("a secret in the environment", {"extraEnv": {"AWS_SECRET_ACCESS_KEY": "x"}}),
    ("headers of a collector, which are secret", {"extraEnv": {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=x"}}),
    ("a password in a URL", {"extraEnv": {"PROXY": "http://me:secret@proxy"}}),
    ("a setting that has a value of its own", {"extraEnv": {"SLUICE_PARTITIONS": "4"}}),
    ("the bus past the Secret", {"extraEnv": {"SLUICE_BUS_URL": "amqp://localhost"}}),
    ("an environment variable that is no text", {"extraEnv": {"DEBUG": True}}),
    ("a public URL with a password", {"publicUrl": "https://me:secret@sluice.example"}),
    ("a public URL that is none", {"publicUrl": "sluice.example"}),
    ("targets in words", {"allowPrivateTargets": "all"}),
    ("an unknown kind of files", {"files": {"kind": "nfs"}}),
    ("a size without sense", {"files": {"size": "large"}}),
    ("root", {"podSecurity": {"user": 0}}),
    ("a budget that blocks every drain", {"podDisruptionBudget": {"maxUnavailable": 0}}),
    ("a budget of no percent", {"podDisruptionBudget": {"maxUnavailable": "0%"}}),
    ("a budget by minAvailable", {"podDisruptionBudget": {"minAvailable": 1}}),
    ("no limit of memory", {"defaults": {"resources": {"limits": {"memory": None}}}}),
    ("resources without sense", {"defaults": {"resources": {"requests": {"cpu": "much"}}}}),
    ("a port out of range", {"service": {"port": 70000}}),
    ("an unknown type of Service", {"service": {"type": "ExternalName"}}),
    ("a host with a scheme", {"ingress": {"host": "https://sluice.example"}}),
    ("an annotation that is a number", {"ingress": {"annotations": {"proxy-read-timeout": 3600}}}),
    ("an interval without a unit", {"serviceMonitor": {"interval": "30"}}),
    ("CPU above all there is", {"hpa": {"cpuPercent": 150}}),
    ("a scaler of another role", {"keda": {"listener": {}}}),
    ("a queue depth of nothing", {"keda": {"delivery": {"messagesPerReplica": 0}}}),
    ("the latest server in a trial", {"trial": {"redis": {"image": "redis:latest"}}}),
    ("a server without a tag", {"trial": {"redis": {"image": "redis"}}}),
    ("text for a switch", {"recording": "yes"}),
]

AT_ODDS: list[tuple[str, dict[str, Any]]] = [
    ("existingSecret", {"existingSecret": ""}),
    ("ingress.host", {"ingress": {"enabled": True}}),
    ("trial.enabled", {"trial": {"enabled": True}}),
    ("roles.delivery.replicas", {"partitions": 4, "roles": {"delivery": {"replicas": 5}}}),
    ("roles.aggregator.replicas", {"partitions": 2, "roles": {"aggregator": {"replicas": 3}}}),
    ("keda.delivery.maxReplicas", {"keda": {"enabled": True, "delivery": {"maxReplicas": 9}}}),
    ("keda.aggregator.minReplicas", {"keda": {"enabled": True, "aggregator": {"minReplicas": 5, "maxReplicas": 4}}}),
    ("hpa.minReplicas", {"hpa": {"enabled": True, "minReplicas": 11}}),
]


@pytest.mark.parametrize("values", [values for _, values in WRONG], ids=[what for what, _ in WRONG])
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any]) -> None:
    """By the schema, so `helm install`, `upgrade`, `lint` and `template` all refuse it."""
    with pytest.raises(helm_python.HelmValuesError) as refused:
        render({"existingSecret": "sluice", **values})
    assert last_key(values) in str(refused.value)


@pytest.mark.parametrize(("named", "values"), AT_ODDS, ids=[named for named, _ in AT_ODDS])
def test_values_at_odds_are_refused_by_name(named: str, values: dict[str, Any]) -> None:
    """What is wrong only together, the templates refuse."""
    with pytest.raises(helm_python.HelmRenderError, match=named):
        render({"existingSecret": "sluice", **values})


@pytest.mark.parametrize("case", [*CASES, "defaults"])
def test_right_values_pass_the_older_draft_too(case: str) -> None:
    """Helm 3 reads draft 7 with another library; a second one here stands for it."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(merged({} if case == "defaults" else values_of(case)))


def test_the_schema_knows_every_limit_and_every_value() -> None:
    """A limit that is added to the settings is added here, and no value goes unchecked."""
    assert set(SCHEMA["properties"]["limits"]["properties"]) == set(Limits.__struct_fields__)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(SCHEMA["properties"]) - {"global"} == set(defaults)
    assert open_objects(SCHEMA) == {
        "global",
        "affinity",
        "items",  # tolerations and network peers, which Kubernetes checks
    }


def open_objects(schema: dict[str, Any], name: str = "") -> set[str]:
    """The names of objects that take anything."""
    found = {name} if schema.get("type") == "object" and "additionalProperties" not in schema else set()
    for key, value in schema.items():
        if key in ("properties", "definitions"):
            found |= {n for inner, s in value.items() for n in open_objects(s, inner)}
        elif isinstance(value, dict):
            found |= open_objects(value, key)
    return found


def last_key(values: dict[str, Any]) -> str:
    """The innermost name: what the message must be about."""
    name, inner = next(iter(values.items()))
    return last_key(inner) if isinstance(inner, dict) and inner else name
