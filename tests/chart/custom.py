"""Resources of other operators, which Kubernetes' own schemas do not know: the fields that we use, and no others.

KEDA 2.8 and later (keda.sh/v1alpha1), Prometheus Operator (monitoring.coreos.com/v1).
"""

from typing import Any

import jsonschema

TEXT = {"type": "string", "minLength": 1}
NUMBER = {"type": "integer", "minimum": 0}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": of}


_MAP = {"type": "object", "additionalProperties": TEXT}
_RABBITMQ = _object(
    {
        "type": {"const": "rabbitmq"},
        "metadata": _object(
            {
                "protocol": {"enum": ["amqp", "http", "auto"]},
                "mode": {"enum": ["QueueLength", "MessageRate"]},
                "value": {"type": "string", "pattern": "^[0-9]+$"},  # KEDA's metadata are strings, all of them
                "queueName": TEXT,
            },
            {
                "useRegex": {"enum": ["true", "false"]},
                "excludeUnacknowledged": {"enum": ["true", "false"]},
                "operation": {"enum": ["sum", "max", "avg"]},
                "pageSize": {"type": "string", "pattern": "^[0-9]+$"},
            },
        ),
        "authenticationRef": _object({"name": TEXT}),
    }
)
CUSTOM: dict[str, tuple[str, dict[str, Any]]] = {
    "ScaledObject": (
        "keda.sh/v1alpha1",
        _object(
            {"scaleTargetRef": _object({"name": TEXT}), "triggers": _list(_RABBITMQ)},
            {
                "minReplicaCount": NUMBER,
                "maxReplicaCount": NUMBER,
                "pollingInterval": NUMBER,
                "advanced": _object(
                    {
                        "restoreToOriginalReplicaCount": {"type": "boolean"},
                        "horizontalPodAutoscalerConfig": _object({"behavior": {"type": "object"}}),
                    }
                ),
            },
        ),
    ),
    "TriggerAuthentication": (
        "keda.sh/v1alpha1",
        _object({"secretTargetRef": _list(_object({"parameter": TEXT, "name": TEXT, "key": TEXT}))}),
    ),
    "ServiceMonitor": (
        "monitoring.coreos.com/v1",
        _object(
            {
                "selector": _object({"matchLabels": _MAP}),
                "endpoints": _list(_object({"port": TEXT, "path": TEXT, "interval": TEXT})),
            },
            {"namespaceSelector": _object({"matchNames": _list(TEXT)}), "podTargetLabels": _list(TEXT)},
        ),
    ),
    "PrometheusRule": (
        "monitoring.coreos.com/v1",
        _object(
            {
                "groups": _list(
                    _object(
                        {
                            "name": TEXT,
                            "rules": _list(
                                _object({"alert": TEXT, "expr": TEXT, "for": TEXT, "labels": _MAP, "annotations": _MAP})
                            ),
                        }
                    )
                )
            }
        ),
    ),
}


def check_custom(manifest: dict[str, Any]) -> None:
    """Raises when a field is missing, unknown or of the wrong type."""
    version, spec = CUSTOM[manifest["kind"]]
    assert manifest["apiVersion"] == version
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    jsonschema.validate(manifest["spec"], spec)
