"""The manifests in deploy/k8s: valid for the oldest and newest Kubernetes that is meant, and as hard as promised."""

import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from codemend.rpc import CLEAN_UP_TIME

from orchestrator.runs.store import ANSWER_SECONDS
from orchestrator.server import SERVICE as RUN_SERVICE
from orchestrator.settings import PREFIX as CODEMEND
from orchestrator.settings import Settings
from sandbox_service.server import SERVICE as SANDBOX_SERVICE
from sandbox_service.settings import PREFIX as SANDBOX
from sandbox_service.settings import Settings as SandboxSettings

FOLDER = Path(__file__).parents[2] / "deploy" / "k8s"
VERSIONS = ("1.29", "1.37")


@pytest.fixture(scope="module")
def manifests():
    """What is applied. Without kubectl: the files that the base names, which nothing but labels is added to."""
    if shutil.which("kubectl"):
        done = subprocess.run(
            ["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        text = [done.stdout]
    else:
        names = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
        text = [(FOLDER / name).read_text() for name in names]
    found = [each for part in text for each in yaml.safe_load_all(part)]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pod(manifests, kind, name):
    return manifests[kind, name]["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid_and_has_no_unknown_field(manifests, version):
    for each in manifests.values():
        kubernetes_validate.validate(each, version, strict=True)


def test_an_unknown_field_would_be_seen(manifests):
    broken = {**manifests["Service", "sandbox"], "spek": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


def test_every_file_of_the_folder_is_part_of_the_base():
    named = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(named) == sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl sets the tags")
def test_images_have_the_version_of_the_package(manifests):
    from importlib.metadata import version  # noqa: PLC0415

    for kind, name in (("StatefulSet", "orchestrator"), ("Deployment", "sandbox")):
        assert pod(manifests, kind, name)["containers"][0]["image"].endswith(f":{version('codemend')}")


@pytest.mark.parametrize(
    ("kind", "name", "prefix", "model"),
    [("StatefulSet", "orchestrator", CODEMEND, Settings), ("Deployment", "sandbox", SANDBOX, SandboxSettings)],
)
def test_every_variable_is_a_setting_and_the_grace_fits_into_the_pods(manifests, kind, name, prefix, model):
    spec = pod(manifests, kind, name)
    variables = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert {name.removeprefix(prefix).lower() for name in variables} <= set(model.model_fields)
    grace = model(grace=variables[f"{prefix}GRACE"]).grace
    hangs = ANSWER_SECONDS + 25 if name == "orchestrator" else 0  # as measured with a database that answers nothing
    assert spec["terminationGracePeriodSeconds"] > grace.total_seconds() + CLEAN_UP_TIME.total_seconds() + hangs


@pytest.mark.parametrize(
    ("kind", "name", "service"),
    [("StatefulSet", "orchestrator", RUN_SERVICE), ("Deployment", "sandbox", SANDBOX_SERVICE)],
)
def test_probes_ask_the_port_and_service_that_are_served(manifests, kind, name, service):
    (container,) = pod(manifests, kind, name)["containers"]
    ports = {each["containerPort"] for each in container["ports"]}
    probes = [container[probe]["grpc"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert {probe["port"] for probe in probes} == ports
    assert container["readinessProbe"]["grpc"]["service"] == service.full_name
    (served,) = manifests["Service", name]["spec"]["ports"]
    assert served["port"] in ports
    assert manifests["Service", name]["spec"]["clusterIP"] == "None"


def test_the_orchestrator_is_not_root_and_has_no_powers(manifests):
    spec = pod(manifests, "StatefulSet", "orchestrator")
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize(("kind", "name"), [("StatefulSet", "orchestrator"), ("Deployment", "sandbox")])
def test_pods_have_a_read_only_root_limits_and_no_way_to_the_cluster_or_the_node(manifests, kind, name):
    spec = pod(manifests, kind, name)
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "memory" in container["resources"]["limits"]
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert all("hostPath" not in volume for volume in spec["volumes"])


def test_the_sandbox_runs_in_gvisor_and_is_denied_all_egress(manifests):
    assert pod(manifests, "Deployment", "sandbox")["runtimeClassName"] == "gvisor"
    policy = manifests["NetworkPolicy", "sandbox"]["spec"]
    labels = manifests["Deployment", "sandbox"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert "Egress" in policy["policyTypes"]
    assert not policy.get("egress")
    (ingress,) = policy["ingress"]
    assert ingress["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "orchestrator"}}}]


def test_a_replica_is_named_after_its_pod_and_secrets_come_from_a_secret(manifests):
    env = {each["name"]: each for each in pod(manifests, "StatefulSet", "orchestrator")["containers"][0]["env"]}
    assert env["CODEMEND_REPLICA_ID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    for name in ("CODEMEND_DATABASE_URL", "CODEMEND_API_KEY"):
        assert "secretKeyRef" in env[name]["valueFrom"]
