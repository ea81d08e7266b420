"""The Kubernetes manifests follow Kubernetes' schemas and its strictest profile, and read what txlayer understands."""

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.debian import program
from tests.support.deployment import COMPOSE, documents, exit_code, services
from tests.support.programs import run_program
from txlayer.cli.main import build_app
from txlayer.config import check_names

FOLDER = COMPOSE / "kubernetes"
VERSIONS = ("1.31", "1.37")
"""The oldest and the newest whose schemas are held against the files."""
KUSTOMIZATION = documents(FOLDER / "kustomization.yaml")[0]
OBJECTS = {
    f"{found['kind']}/{found['metadata']['name']}": found
    for name in KUSTOMIZATION["resources"]
    for found in documents(FOLDER / name)
}
PODS = {
    name: found["spec"]["template"]["spec"] for name, found in OBJECTS.items() if "template" in found.get("spec", {})
}
CONTAINERS = {name: pod["containers"][0] for name, pod in PODS.items()}
DEPLOYMENTS = {name: found for name, found in OBJECTS.items() if found["kind"] == "Deployment"}


def test_every_file_is_applied() -> None:
    there = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}

    assert there == set(KUSTOMIZATION["resources"])
    assert {"Deployment/txlayer-coordinator", "Deployment/txlayer-responder", "Job/txlayer-topics"} == set(PODS)


def test_what_kubectl_makes_of_the_folder_is_what_its_files_say() -> None:
    kubectl = program("kubectl", package="kubernetes-client")

    answer = run_program([kubectl, "kustomize", str(FOLDER)], within=60)

    assert (0, "") == (answer.returncode, answer.stderr)
    made = list(yaml.safe_load_all(answer.stdout))
    assert {f"{found['kind']}/{found['metadata']['name']}": found for found in made} == OBJECTS


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_follows_the_schema_of_kubernetes(name: str, version: str) -> None:
    kubernetes_validate.validate(OBJECTS[name], version, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_restricted(name: str) -> None:
    pod, container = PODS[name], CONTAINERS[name]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert {"type": "RuntimeDefault"} == pod["securityContext"]["seccompProfile"]
    assert {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } == container["securityContext"]
    assert pod["automountServiceAccountToken"] is False
    assert {"cpu", "memory"} == set(container["resources"]["limits"])
    assert {"cpu", "memory"} == set(container["resources"]["requests"])


@pytest.mark.parametrize("name", PODS)
def test_a_service_of_the_cluster_puts_no_unknown_name_into_the_environment(name: str) -> None:
    assert PODS[name]["enableServiceLinks"] is False


@pytest.mark.parametrize("name", PODS)
def test_a_command_line_is_one_that_the_program_takes(name: str) -> None:
    assert 0 == exit_code(CONTAINERS[name]["args"], build_app())


@pytest.mark.parametrize("name", PODS)
def test_every_name_in_an_environment_is_known_and_every_secret_a_reference(name: str) -> None:
    settings = OBJECTS["ConfigMap/txlayer"]["data"]
    variables = CONTAINERS[name]["env"]

    check_names({**settings, **{variable["name"]: "" for variable in variables}})
    assert [] == [v["name"] for v in variables if "secretKeyRef" not in v.get("valueFrom", {})]
    assert [] == [key for key in settings if re.search(r"password|secret|client_settings|url", key, re.IGNORECASE)]


def test_no_two_roles_share_a_secret() -> None:
    used = {
        name: {v["valueFrom"]["secretKeyRef"]["name"] for v in CONTAINERS[name]["env"]}
        | {v["secret"]["secretName"] for v in PODS[name]["volumes"] if "secret" in v}
        for name in PODS
    }
    names = [secret for secrets in used.values() for secret in secrets]

    assert all(used.values())
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_is_probed_spread_and_kept_when_nodes_are_drained(name: str) -> None:
    found = DEPLOYMENTS[name]
    labels = found["spec"]["template"]["metadata"]["labels"]
    container = CONTAINERS[name]
    ports: dict[str, Any] = {port["name"]: port["containerPort"] for port in container["ports"]}

    assert found["spec"]["selector"]["matchLabels"] == labels
    budget = OBJECTS[name.replace("Deployment", "PodDisruptionBudget")]
    assert labels == budget["spec"]["selector"]["matchLabels"]
    for spread in PODS[name]["topologySpreadConstraints"]:
        assert labels == spread["labelSelector"]["matchLabels"]
    assert "/livez" == container["livenessProbe"]["httpGet"]["path"]
    assert "/readyz" == container["readinessProbe"]["httpGet"]["path"]
    assert ports["metrics"] == int(OBJECTS["ConfigMap/txlayer"]["data"]["TXLAYER_METRICS_PORT"])


def test_every_container_runs_the_image_of_the_compose_file() -> None:
    image = services()["coordinator-1"]["image"]

    assert [] == [name for name, container in CONTAINERS.items() if container["image"] != image]
