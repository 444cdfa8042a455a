"""The chart as Helm renders it, without a cluster: value files, manifests, and what is looked up in them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import yaml

from services.cli.roles import ALL_ROLES

CHART = Path(__file__).parents[2] / "k8s" / "sluice"
VALUES = Path(__file__).parent / "values"
CASES = sorted(path.stem for path in VALUES.glob("*.yaml"))
ROLES = tuple(str(role) for role in ALL_ROLES)

Manifest = dict[str, Any]


def values_of(case: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((VALUES / f"{case}.yaml").read_text())
    return loaded


def render(values: dict[str, Any], name: str = "demo") -> list[Manifest]:
    """What `helm install` would send; the schema is asked first, as it is there."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name=name, namespace="talk")
    return [
        manifest
        for path, text in files.items()
        if path.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]


def notes(values: dict[str, Any]) -> str:
    with helm_python.Chart.load(CHART) as chart:
        return chart.render(values, name="demo", namespace="talk")["sluice/templates/NOTES.txt"]


def merged(values: dict[str, Any]) -> dict[str, Any]:
    with helm_python.Chart.load(CHART) as chart:
        return chart.merge_values(values)


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def component(manifest: Manifest) -> str:
    return str(manifest["metadata"]["labels"]["app.kubernetes.io/component"])


def role_deployments(manifests: list[Manifest]) -> dict[str, Manifest]:
    return {component(manifest): manifest for manifest in of_kind(manifests, "Deployment")}


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the pod spec of everything that runs."""
    for manifest in manifests:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        if manifest["kind"] == "Pod":
            yield name, manifest["spec"]
        elif manifest["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield name, manifest["spec"]["template"]["spec"]


def containers(manifests: list[Manifest]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every container, those that run before the others included."""
    for name, spec in pods(manifests):
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            yield f"{name}/{container['name']}", container


def env_of(container: dict[str, Any], manifests: list[Manifest]) -> dict[str, str]:
    """What the process gets; a value from a Secret is shown as `secret:name/key`."""
    env: dict[str, str] = {}
    maps = {m["metadata"]["name"]: m["data"] for m in of_kind(manifests, "ConfigMap")}
    for source in container.get("envFrom", ()):
        env.update(maps[source["configMapRef"]["name"]])
    for item in container.get("env", ()):
        if "value" in item:
            env[item["name"]] = item["value"]
        else:
            reference = item["valueFrom"]["secretKeyRef"]
            env[item["name"]] = f"secret:{reference['name']}/{reference['key']}"
    return env
