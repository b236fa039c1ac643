"""docker-compose.yml, the image and its scripts agree with each other and with the program, and keep to the rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from orchestrator.__main__ import cli

ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
GPU = yaml.safe_load((ROOT / "deploy/compose.gpu.yml").read_text())
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BUILT = SERVICES["orchestrator"]
each_service = pytest.mark.parametrize("name", SERVICES)
VARIABLE = re.compile(r"\$\{(\w+)(:[?-][^}]*)?\}")


def pinned(image: str) -> bool:
    return bool(re.search(r":[\w.-]*\d[\w.-]*$", image)) and "latest" not in image


def mounts(service: dict[str, Any]) -> list[list[str]]:
    return [entry.split(":") for entry in service.get("volumes", [])]


def copied() -> list[str]:
    """Sources of COPY."""
    return [path for line in DOCKERFILE.splitlines() if line.startswith("COPY ") for path in line.split()[1:-1]]


def test_there_is_a_service_for_each_part() -> None:
    assert set(SERVICES) == {"orchestrator", "target", "draft", "prometheus", "grafana"}
    assert set(GPU["services"]) <= set(SERVICES)


@each_service
def test_images_are_pinned_or_built_here(name: str) -> None:
    image = SERVICES[name]["image"]
    assert image == BUILT["image"] or pinned(image), image


def test_the_image_is_built_once_and_never_pulled() -> None:
    assert [service for service in SERVICES.values() if "build" in service] == [BUILT]
    assert (ROOT / BUILT["build"]["dockerfile"]).is_file()
    for service in SERVICES.values():
        assert (service.get("pull_policy") == "never") == (service["image"] == BUILT["image"])


def test_the_base_image_is_pinned() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert bases == ["python:3.11-slim-bookworm"]


@each_service
def test_services_run_with_few_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    user = service.get("user") or re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)[-1]
    assert user.split(":")[0] not in {"", "0", "root"}


@each_service
def test_ports_are_published_on_loopback_alone(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:"), port


@each_service
def test_health_checks_run_what_is_there(name: str) -> None:
    test = SERVICES[name]["healthcheck"]["test"]
    assert test[0] == "CMD"
    assert all(" " not in argument for argument in test)
    for argument in test:
        if argument.startswith("deploy/"):
            assert (ROOT / argument).is_file()
            assert argument in copied()


@each_service
def test_start_order_names_services_and_conditions_they_can_meet(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert how["condition"] in {"service_started", "service_healthy"}
        assert "healthcheck" in SERVICES[other]


@each_service
def test_volumes_are_declared_and_mounted_files_exist(name: str) -> None:
    for source, _, *mode in mounts(SERVICES[name]):
        if source.startswith("."):
            assert (ROOT / source).exists(), source
            assert mode == ["ro"]
        else:
            assert source in COMPOSE["volumes"]


def test_the_model_cache_is_a_volume_of_all_that_load_models() -> None:
    cache = re.findall(r"DRAFTPROOF_CACHE=(\S+)", DOCKERFILE)
    for name in ("orchestrator", "target", "draft"):
        assert ["models", *cache] in mounts(SERVICES[name])


@each_service
def test_no_secret_is_in_the_file(name: str) -> None:
    secret = re.compile(r"TOKEN|PASSWORD|SECRET|_KEY")
    for variable, value in SERVICES[name].get("environment", {}).items():
        if secret.search(variable):
            match = VARIABLE.fullmatch(value)
            assert match, variable
            assert match[2] == ":-" or match[2].startswith(":?"), variable


def test_what_has_no_default_is_written_by_secrets_sh() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    needed = {name for name, default in VARIABLE.findall(text) if not default.startswith(":-")}
    written = set(re.findall(r"^(\w+)=\$\(random\)", (ROOT / "deploy/secrets.sh").read_text(), re.MULTILINE))
    assert needed == written
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_flags_and_variables_of_the_orchestrator_exist() -> None:
    command = typer.main.get_command(cli)
    flags = {flag for parameter in command.params for flag in parameter.opts}
    names = {parameter.name.upper() for parameter in command.params if parameter.name}
    used = [part.split("=")[0] for part in SERVICES["orchestrator"]["command"] if part.startswith("--")]
    assert used
    assert set(used) <= flags
    for service in (*SERVICES.values(), GPU["services"]["orchestrator"]):
        for variable in service.get("environment", {}):
            if variable.startswith("DRAFTPROOF_ORCHESTRATOR_"):
                assert variable.removeprefix("DRAFTPROOF_ORCHESTRATOR_") in names


def test_prometheus_finds_the_orchestrator_where_it_listens() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (port,) = [part.split("=")[1] for part in SERVICES["orchestrator"]["command"] if "metrics-port" in part]
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs["orchestrator"]["static_configs"][0]["targets"] == [f"orchestrator:{port}"]
    assert jobs["workers"]["http_sd_configs"][0]["url"] == f"http://orchestrator:{port}/sd"


def test_the_image_installs_before_it_copies_code_and_brings_no_build_tools() -> None:
    assert DOCKERFILE.index("--constraint constraints.txt") < DOCKERFILE.index("COPY draftproof")
    assert "--only-binary=:all:" in DOCKERFILE
    assert "apt-get" not in DOCKERFILE
    assert "://" not in DOCKERFILE


def test_what_the_image_copies_passes_dockerignore() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in copied():
        assert (ROOT / path).exists(), path
        assert path in allowed, path


def test_operations_has_a_section_for_each_alert() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules/alerts.yml").read_text())
    page = (ROOT / "docs/operations.md").read_text()
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert alerts == set(re.findall(r"^### (Draftproof\w+)$", page, re.MULTILINE))
