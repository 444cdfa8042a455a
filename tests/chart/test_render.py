import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import helm_python
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

from services.cli.__main__ import app
from services.cli.roles import require_fleet
from shared.cards import build_of, cards
from shared.config import load
from shared.crypto import Keyring
from shared.wire.ids import delivery_queue, stream_queue
from tests.chart.charts import (
    CASES,
    CHART,
    ROLES,
    component,
    containers,
    env_of,
    notes,
    of_kind,
    render,
    role_deployments,
    values_of,
)
from tests.chart.custom import CUSTOM, check_custom

META = yaml.safe_load((CHART / "Chart.yaml").read_text())
OLDEST = re.fullmatch(r">=(1\.\d+)\.0-0", META["kubeVersion"])
assert OLDEST is not None, "the oldest Kubernetes that is supported stands in Chart.yaml"
SUPPORTED = [v for v in all_versions() if tuple(map(int, v.split(".")[:2])) >= tuple(map(int, OLDEST[1].split(".")))]
SECRETS = {
    "SLUICE_SECRET_KEY": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "SLUICE_API_KEY": "sk_test_only",
    "SLUICE_BUS_URL": "amqp://localhost",
    "SLUICE_STATE_URL": "redis://localhost",
    "SLUICE_RECORDS_URL": "postgresql://localhost/sluice",
    "SLUICE_FILES_URL": "s3://bucket",
}


@pytest.mark.parametrize("version", [SUPPORTED[0], SUPPORTED[-1]])
@pytest.mark.parametrize("case", CASES)
def test_lint_finds_nothing(case: str, version: str) -> None:
    """As `helm lint --strict`; that an icon is recommended is only told."""
    report = helm_python.lint(CHART, values_of(case), strict=True, kube_version=f"v{version}")
    told = [m["error"] for m in report["messages"]]
    assert (report["errors"], [t for t in told if t != "icon is recommended"]) == ([], [])
    assert report["total_charts_linted"] == 1


def test_the_supported_range_is_known_to_the_validator() -> None:
    """Otherwise the schemas of another version would be taken in silence."""
    assert SUPPORTED[0].startswith(f"{OLDEST[1]}.")
    assert len(SUPPORTED) >= 2


@pytest.mark.parametrize("version", [SUPPORTED[0], SUPPORTED[-1]])
@pytest.mark.parametrize("case", CASES)
def test_every_manifest_is_valid_for_kubernetes(case: str, version: str) -> None:
    """Strictly: a field that the version does not know is an error too."""
    checked = 0
    for manifest in render(values_of(case)):
        if manifest["kind"] in CUSTOM:
            check_custom(manifest)
        else:
            assert kubernetes_validate.validate(manifest, version, strict=True) == version.rsplit(".", 1)[0]
        checked += 1
    assert checked >= 20


@pytest.mark.parametrize("case", CASES)
def test_no_two_manifests_share_a_name(case: str) -> None:
    manifests = render(values_of(case))
    names = [(m["apiVersion"], m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(names) == len(set(names))


def test_a_long_release_name_stays_within_the_bounds_of_names() -> None:
    """A Service's name has 63 characters at most."""
    manifests = render(values_of("trial"), name="a" * 53)
    assert max(len(m["metadata"]["name"]) for m in manifests) <= 63
    assert max(len(label) for m in manifests for label in m["metadata"]["labels"].values()) <= 63


@pytest.mark.parametrize("case", CASES)
def test_every_role_runs_and_takes_its_settings(case: str) -> None:
    """What the chart sets, the settings know and take; the commands are commands."""
    manifests = render(values_of(case))
    deployments = role_deployments(manifests)
    assert set(deployments) == set(ROLES)
    for name, container in containers(manifests):
        if "trial-" in name:
            continue
        assert container["command"][0] == "sluice", name
        app.parse_args(container["command"][1:], exit_on_error=False, print_error=False)
        env = env_of(container, manifests)
        unknown = {key for key in env if key.startswith("SLUICE_") and not known(key)}
        assert unknown == set(), name
        load({}, {key: SECRETS[key] if value.startswith("secret:") else value for key, value in sluice(env)})
    for role, deployment in deployments.items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["command"] == ["sluice", "run", role]
        env = env_of(container, manifests)
        assert {key for key in SECRETS if key in env} == set(SECRETS)


def test_large_numbers_reach_the_settings_as_they_are() -> None:
    """Helm's numbers are floats; 104857600 must not become 1.048576e+08."""
    manifests = render(values_of("full"))
    (container,) = role_deployments(manifests)["edge"]["spec"]["template"]["spec"]["containers"]
    env = env_of(container, manifests)
    assert env["SLUICE_LIMIT_UPLOAD_BYTES"] == "104857600"
    settings = load({}, {key: SECRETS.get(key, value) for key, value in sluice(env)})
    assert (settings.limits.upload_bytes, settings.limits.call_seconds) == (104857600, 90.5)
    assert (settings.partitions, settings.recording) == (32, True)
    assert settings.public_url == "https://talk.example.org"


def test_the_configuration_restarts_the_pods_that_use_it() -> None:
    """Its checksum is in the pods' template; a change of something else leaves it."""

    def checksums(**values: Any) -> set[str]:
        deployments = role_deployments(render({**values_of("minimal"), **values}))
        return {d["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for d in deployments.values()}

    before = checksums()
    assert len(before) == 1
    assert checksums(hpa={"enabled": True}) == before
    assert checksums(partitions=9).isdisjoint(before)


def test_scaled_roles_leave_their_count_to_the_scaler() -> None:
    """A `replicas` in the Deployment would undo the scaling with every upgrade."""
    deployments = role_deployments(render(values_of("scaled")))
    counts = {role: deployment["spec"].get("replicas") for role, deployment in deployments.items()}
    assert counts == {"edge": None, "delivery": None, "aggregator": None, "listener": 2}
    deployments = role_deployments(render(values_of("three")))
    assert {d["spec"]["replicas"] for d in deployments.values()} == {3}


def test_queue_depth_counts_what_is_being_worked_on() -> None:
    """KEDA over AMQP sees ready messages only, and a busy worker would be scaled in; so the management API is asked."""
    manifests = render(values_of("scaled"))
    queues = {"delivery": delivery_queue, "aggregator": stream_queue}
    scaled = {component(m): m["spec"] for m in of_kind(manifests, "ScaledObject")}
    assert set(scaled) == set(queues)
    for role, spec in scaled.items():
        (trigger,) = spec["triggers"]
        metadata = trigger["metadata"]
        assert (metadata["protocol"], metadata["mode"]) == ("http", "QueueLength")
        assert metadata["excludeUnacknowledged"] == "false"
        pattern = re.compile(metadata["queueName"])
        assert all(pattern.search(queues[role](p)) for p in range(16))
        assert not any(pattern.search(other(3)) for name, other in queues.items() if name != role)
        assert not pattern.search("sluice.dead")
        assert 16 <= int(metadata["pageSize"]) <= 500
        assert spec["maxReplicaCount"] <= 16
    (authentication,) = of_kind(manifests, "TriggerAuthentication")
    assert authentication["spec"]["secretTargetRef"][0]["key"] == "RABBITMQ_MANAGEMENT_URL"


def test_migrations_come_before_the_rest_and_need_nothing_of_it() -> None:
    """A hook of the first installation runs when the Secret is all there is."""
    (job,) = of_kind(render(values_of("minimal")), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    spec = job["spec"]["template"]["spec"]
    assert "serviceAccountName" not in spec
    (container,) = spec["containers"]
    assert container["command"] == ["sluice", "migrate"]
    assert "envFrom" not in container
    assert of_kind(render(values_of("trial")), "Job") == []  # there is no database yet; the roles wait and migrate


def test_a_trial_makes_up_secrets_that_the_roles_take() -> None:
    """The key is a key, the URLs name the trial's own servers and their ports, and no two trials share a password."""
    manifests = render(values_of("trial"))
    (secret,) = of_kind(manifests, "Secret")
    made: dict[str, str] = secret["stringData"]
    require_fleet(load({}, {key: value for key, value in made.items() if key.startswith("SLUICE_")}))
    assert Keyring.parse(made["SLUICE_SECRET_KEY"])
    services = {m["metadata"]["name"]: {p["port"] for p in m["spec"]["ports"]} for m in of_kind(manifests, "Service")}
    for name in (key for key in made if key.endswith("_URL")):
        url = urlsplit(made[name])
        assert url.port in services[url.hostname or ""], name
        assert url.password == made["PASSWORD"], name
    (other,) = of_kind(render(values_of("trial")), "Secret")
    assert other["stringData"].items().isdisjoint(made.items())


@pytest.mark.parametrize(("recording", "card"), [(True, "im.recording"), (False, "im.console")])
def test_helm_test_carries_a_message(recording: bool, card: str) -> None:  # noqa: FBT001 - a case
    """On the scripted platform where it is on; else on the console, which every installation has."""
    manifests = render({**values_of("minimal"), "recording": recording})
    (pod,) = of_kind(manifests, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    command = pod["spec"]["containers"][0]["command"]
    assert command[:3] == ["sluice", "smoke", f"http://demo-sluice-edge.talk.svc:8080/{card}"]
    assert card in cards(recording=recording, build=build_of())


def test_notes_say_what_comes_next_and_what_a_trial_is_not() -> None:
    said = notes(values_of("full"))
    assert "https://talk.example.org/im.webhook" in said
    assert "helm test demo --namespace talk" in said
    assert "NOT FOR PRODUCTION" not in said
    assert "NOT FOR PRODUCTION" in notes(values_of("trial"))
    assert "port-forward" in notes(values_of("minimal"))


def test_the_chart_has_the_version_of_the_code() -> None:
    """An image's tag is the chart's appVersion unless told otherwise."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert META["appVersion"] == project["version"]


def known(name: str) -> bool:
    """Whether a setting has this name: a wrong value of it is refused by name."""
    try:
        load({}, {name: "\0"})
    except ValueError as error:
        return name in str(error)
    return name in ("SLUICE_HOST", "SLUICE_DATA_DIR", "SLUICE_PUBLIC_URL", "SLUICE_ALLOW_PRIVATE_TARGETS", *SECRETS)


def sluice(env: dict[str, str]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in env.items() if key.startswith("SLUICE_")]
