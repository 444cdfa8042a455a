"""What every manifest keeps to, whatever the values; field report 50 as far as a chart decides it."""

import json
import re
from typing import Any

import pytest
import yaml

from shared.bus.outgoing import CLOSES_WITHIN
from shared.config import Limits
from tests.chart.charts import (
    CASES,
    CHART,
    ROLES,
    component,
    containers,
    merged,
    of_kind,
    pods,
    render,
    role_deployments,
    values_of,
)

SECRET = re.compile(r"SECRET|KEY|TOKEN|PASS|CREDENTIAL|_URL$")
PUBLIC = {"SLUICE_PUBLIC_URL"}
"""URLs that hold nobody's password; SLUICE_FILES_URL is one too where it names a folder."""

pytestmark = pytest.mark.parametrize("case", CASES)


def test_nothing_runs_as_root_or_writes_to_its_image(case: str) -> None:
    """The restricted profile of Kubernetes' pod security standards, and a read-only root beside it."""
    manifests = render(values_of(case))
    for name, spec in pods(manifests):
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert all(not {"hostPath"} & set(volume) for volume in spec.get("volumes", ())), name
    for name, container in containers(manifests):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}, name  # noqa: S108


def test_no_pod_gets_a_token_or_the_addresses_of_services(case: str) -> None:
    """A Service named sluice would set SLUICE_PORT=tcp://…, and no role would start."""
    manifests = render(values_of(case))
    for name, spec in pods(manifests):
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False), name
    for account in of_kind(manifests, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_everything_asks_for_resources_and_is_limited(case: str) -> None:
    for name, container in containers(render(values_of(case))):
        for side in ("requests", "limits"):
            assert set(container["resources"][side]) >= {"cpu", "memory"}, name


def test_every_image_is_pinned(case: str) -> None:
    """By a tag that is not `latest`, or by a digest."""
    for name, container in containers(render(values_of(case))):
        image = container["image"]
        _, _, tag = image.rpartition("/")[2].partition(":")
        assert "@sha256:" in image or tag, name
        assert tag != "latest", name


def test_no_outage_restarts_a_pod(case: str) -> None:
    """Liveness and the start ask the process alone; what it needs decides about traffic only (field report 50)."""
    for role, deployment in role_deployments(render(values_of(case))).items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        asked = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
        assert asked == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}, role
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert all(ports[container[name]["httpGet"]["port"]] == 9464 for name in asked), role
        liveness = container["livenessProbe"]
        assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60, (
            role
        )  # a long turn of the loop is no death


def test_servers_of_a_trial_are_probed_too(case: str) -> None:
    for server in of_kind(render(values_of(case)), "StatefulSet"):
        (container,) = server["spec"]["template"]["spec"]["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)


def test_a_pod_leaves_its_service_before_it_stops_and_has_time_to_finish(case: str) -> None:
    """Grace is above preStop + drain, and a worker's drain above a call of a platform and what follows it."""
    values = values_of(case)
    settings = merged(values)
    limits = settings["limits"]
    call = limits.get("call_seconds", Limits().call_seconds)
    for role, deployment in role_deployments(render(values)).items():
        spec = deployment["spec"]["template"]["spec"]
        stated = {**settings["defaults"], **settings["roles"][role]}
        drain, sleep = stated["drainSeconds"], spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        if role == "delivery":
            drain = max(drain, call + CLOSES_WITHIN)
        assert sleep >= 1, role
        assert spec["terminationGracePeriodSeconds"] > sleep + drain, role
        assert drain > CLOSES_WITHIN, role


def test_a_rollout_never_falls_below_what_was_asked_for(case: str) -> None:
    for deployment in role_deployments(render(values_of(case))).values():
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_a_node_drains_even_with_one_replica(case: str) -> None:
    """At least one disruption is allowed: maxUnavailable, never minAvailable (field report 50)."""
    budgets = of_kind(render(values_of(case)), "PodDisruptionBudget")
    assert {component(budget) for budget in budgets} == set(ROLES)
    for budget in budgets:
        spec = budget["spec"]
        assert "minAvailable" not in spec
        assert int(str(spec["maxUnavailable"]).rstrip("%")) >= 1
        assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_selectors_find_what_they_are_for(case: str) -> None:
    """Services, budgets, policies, spreads and monitors select pods that are there; a role's, and no other's."""
    manifests = render(values_of(case))
    labels = [m["metadata"]["labels"] for m in of_kind(manifests, "Pod")]
    labels += [
        m["spec"]["template"]["metadata"]["labels"] for m in of_kind(manifests, "Deployment", "StatefulSet", "Job")
    ]
    for manifest in manifests:
        kind, spec = manifest["kind"], manifest.get("spec", {})
        if kind == "Service":
            wanted = spec["selector"]
        elif kind == "PodDisruptionBudget":
            wanted = spec["selector"]["matchLabels"]
        elif kind == "NetworkPolicy":
            wanted = spec["podSelector"]["matchLabels"]
        else:
            continue
        found = [pod for pod in labels if wanted.items() <= pod.items()]
        expected = 0 if component(manifest) == "migrate" and "trial" in case else 1
        assert len(found) == expected, (kind, manifest["metadata"]["name"])
    for role, deployment in role_deployments(manifests).items():
        for spread in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == role
    services = [m["metadata"]["labels"] for m in of_kind(manifests, "Service")]
    for monitor in of_kind(manifests, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        assert len([found for found in services if wanted.items() <= found.items()]) == len(ROLES)


def test_secrets_come_by_reference_only(case: str) -> None:
    """No value of an environment variable and no ConfigMap holds one; only a trial makes a Secret of its own."""
    manifests = render(values_of(case))
    for name, container in containers(manifests):
        for item in container.get("env", ()):
            if SECRET.search(item["name"]):
                assert "value" not in item, (name, item["name"])
        assert all("configMapRef" in source for source in container.get("envFrom", ())), name
    for config in of_kind(manifests, "ConfigMap"):
        hidden = {key for key in config["data"] if SECRET.search(key)} - PUBLIC
        assert {key for key in hidden if not config["data"][key].startswith("file://")} == set()
    trial = bool(values_of(case).get("trial"))
    secrets = of_kind(manifests, "Secret")
    assert bool(secrets) is trial
    text = json.dumps([m for m in manifests if m["kind"] != "Secret"])
    for value in (value for secret in secrets for value in secret["stringData"].values()):
        assert value not in text


def test_traffic_is_fenced(case: str) -> None:
    """Every pod has a policy; only the edge's port is open to all, and an aggregator has no way to the web."""
    manifests = render(values_of(case))
    policies = {component(m): m["spec"] for m in of_kind(manifests, "NetworkPolicy")}
    assert {*ROLES, "smoke"} <= set(policies)
    open_ports = {role: [rule for rule in policies[role]["ingress"] if "from" not in rule] for role in ROLES}
    assert [role for role in ROLES if open_ports[role]] in (["edge"], [])
    assert ports_of(policies["aggregator"]["egress"]).isdisjoint({80, 443})
    assert ports_of(policies["delivery"]["egress"]) >= {53, 443, 5672, 6379, 5432}
    for spec in policies.values():
        assert "Ingress" in spec["policyTypes"]


def test_sockets_outlive_the_patience_of_an_ingress(case: str) -> None:
    """A proxy that cuts silent connections must wait for far more than our ping."""
    for ingress in of_kind(render(values_of(case)), "Ingress"):
        annotations = ingress["metadata"]["annotations"]
        for direction in ("read", "send"):
            patience = int(annotations[f"nginx.ingress.kubernetes.io/proxy-{direction}-timeout"])
            assert patience > 10 * Limits().ping_seconds
        body = annotations["nginx.ingress.kubernetes.io/proxy-body-size"]
        assert int(body.removesuffix("m")) * 1024 * 1024 > Limits().upload_bytes


def test_the_alerts_are_those_of_the_file(case: str) -> None:
    """All rules of the file are in the manifest as they are; their metrics are checked where they are declared."""
    (alerts,) = yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"]
    rules = alerts["rules"]
    for manifest in of_kind(render(values_of(case)), "PrometheusRule"):
        (group,) = manifest["spec"]["groups"]
        assert [r["alert"] for r in group["rules"]] == [r["alert"] for r in rules]
        assert "{{ $labels.card }}" in json.dumps(group, ensure_ascii=False)


def ports_of(rules: list[dict[str, Any]]) -> set[int]:
    return {port["port"] for rule in rules for port in rule.get("ports", ())}
