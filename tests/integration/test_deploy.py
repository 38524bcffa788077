"""
The files of deploy/ and the operations manual match their formats, the commands and settings, and each other.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import hcl2
import pytest
import yaml
from amqp.exceptions import AccessRefused
from click.testing import CliRunner
from kombu import Connection

from outrider.cdc_relay.__main__ import command as relay_command
from outrider.cli import outrider
from outrider.consumer.metrics import STATUSES
from outrider.embedded.rabbitmq import RabbitMQ
from outrider.failures import POLICIES
from outrider.retry_scheduler.__main__ import command as scheduler
from outrider.settings.loading import KNOWN_SETTINGS
from outrider.settings.relay import RelaySettings
from outrider.storage.decision import DEAD_LETTER_REASONS
from tests.fixtures.broker import Broker
from tests.fixtures.metric_catalogue import CATALOGUE
from tests.fixtures.promtool import MISSING, find_promtool
from tests.fixtures.servers import SharedRabbitMQ
from tests.fixtures.stage import Stage
from tests.fixtures.waiting import wait_for

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose/compose.yml"
KUBERNETES = DEPLOY / "kubernetes"
ALERTS = DEPLOY / "prometheus/outbox-alerts.yml"
MANUAL = ROOT / "docs/operations.md"
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
KUBERNETES_VERSIONS = ("1.29", "1.33")


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def kubernetes_objects() -> Iterator[dict[str, Any]]:
    for name in documents(KUBERNETES / "kustomization.yaml")[0]["resources"]:
        yield from documents(KUBERNETES / name)


def pod_templates() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for each in [*kubernetes_objects(), *documents(KUBERNETES / "worker.example.yaml")]:
        if each["kind"] in ("Deployment", "Job"):
            yield each, each["spec"]["template"]


def settings_of(names: Iterator[str] | list[str] | dict[str, Any]) -> set[str]:
    return {name.removeprefix("OUTRIDER_").lower() for name in names if name.startswith("OUTRIDER_")}


# -- Kubernetes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    examples = [document for path in KUBERNETES.glob("*.example.yaml") for document in documents(path)]
    assert len(examples) == 5
    for each in [*kubernetes_objects(), *examples]:
        validator.validate(each, version, strict=True)


def test_kustomize_builds_the_manifests() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is missing")
    command = ["kubectl", "kustomize", str(KUBERNETES)]
    built = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    kinds = sorted(each["kind"] for each in yaml.safe_load_all(built))
    assert kinds == sorted(each["kind"] for each in kubernetes_objects())
    assert {"image: outrider:0.1.0"} == {line.strip() for line in built.splitlines() if "image:" in line}


def test_the_manifests_refer_to_each_other_to_our_commands_and_to_our_settings() -> None:
    objects = {(each["kind"], each["metadata"]["name"]): each for each in kubernetes_objects()}
    objects |= {
        (each["kind"], each["metadata"]["name"]): each for each in documents(KUBERNETES / "secret.example.yaml")
    }
    for owner, template in pod_templates():
        (container,) = template["spec"]["containers"]
        assert container["command"][0] in SCRIPTS
        assert (
            owner["spec"].get("selector", {}).get("matchLabels", {}).items() <= template["metadata"]["labels"].items()
        )
        for source in container["envFrom"]:
            ((kind, reference),) = source.items()
            kind = {"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind]
            referred = objects[kind, reference["name"]]
            values = referred.get("data") or referred["stringData"]
            assert settings_of(values) <= KNOWN_SETTINGS
            assert len(settings_of(values)) == len(values)
        assert settings_of([variable["name"] for variable in container.get("env", [])]) <= KNOWN_SETTINGS
    for kind in ("PodDisruptionBudget", "HorizontalPodAutoscaler"):
        names = {name for each, name in objects if each == kind}
        assert names <= {name for each, name in objects if each == "Deployment"}, kind
    assert objects["Deployment", "outbox-relay"]["spec"]["replicas"] == 2


def test_a_pod_monitor_selects_every_pod_that_has_metrics() -> None:
    monitors = [each["spec"] for each in documents(KUBERNETES / "monitoring.yaml")]

    def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
        expressions = selector.get("matchExpressions", [])
        assert {each["operator"] for each in expressions} <= {"In"}
        return selector.get("matchLabels", {}).items() <= labels.items() and all(
            labels.get(each["key"]) in each["values"] for each in expressions
        )

    for owner, template in pod_templates():
        metadata = template["metadata"]
        selected = [monitor for monitor in monitors if selects(monitor["selector"], metadata["labels"])]
        has_metrics = metadata.get("annotations", {}).get("prometheus.io/scrape") == "true"
        assert has_metrics == (owner["kind"] == "Deployment")
        assert len(selected) == has_metrics, owner["metadata"]["name"]
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0].get("ports", [])}
        for monitor in selected:
            assert {ports[endpoint["port"]] for endpoint in monitor["podMetricsEndpoints"]} == {9100}
            assert metadata["annotations"]["prometheus.io/port"] == "9100"


def test_containers_run_without_root_and_without_capabilities() -> None:
    for _, template in pod_templates():
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in template["spec"]["containers"]:
            rights = container["securityContext"]
            assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
            assert rights["capabilities"]["drop"] == ["ALL"]


def test_every_stop_timeout_is_longer_than_a_drain() -> None:
    drain = RelaySettings.model_fields["shutdown_timeout_seconds"].default
    timeouts = [re.findall(r"TimeoutStopSec=(\d+)", unit.read_text()) for unit in DEPLOY.glob("systemd/*.service")]
    timeouts.append([documents(COMPOSE)[0]["x-outrider"]["stop_grace_period"].rstrip("s")])
    timeouts += [
        [template["spec"]["terminationGracePeriodSeconds"]]
        for owner, template in pod_templates()
        if owner["kind"] == "Deployment"
    ]
    assert len(timeouts) == 6
    assert all(int(seconds) > drain for (seconds,) in timeouts)


# -- Docker and compose -----------------------------------------------------------------------------------------------


def test_the_image_is_built_from_files_that_exist_and_does_not_run_as_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    allowed = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = {
        source for line in lines if line.startswith("COPY ") and "--from" not in line for source in line.split()[1:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)
    linked = {entry.resolve().name for entry in (ROOT / "outrider").iterdir() if entry.is_symlink()}
    assert {"outrider", *linked} <= copied
    last = lines[max(index for index, line in enumerate(lines) if line.startswith("FROM ")) :]
    (user,) = (line.split()[1] for line in last if line.startswith("USER "))
    assert int(user) > 0
    (command,) = (json.loads(line.removeprefix("CMD ")) for line in last if line.startswith("CMD "))
    assert command[0] in SCRIPTS
    assert settings_of(re.findall(r"\bOUTRIDER_\w+(?==)", "\n".join(last))) == {"http_host", "http_port"}


def test_the_compose_file_names_services_files_commands_and_settings_that_exist() -> None:
    compose = documents(COMPOSE)[0]
    services = compose["services"]
    assert {"postgres", "rabbitmq", "setup", "relay", "standby", "scheduler", "prometheus", "grafana"} == set(services)
    for name, service in services.items():
        assert set(service.get("depends_on", [])) <= set(services), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (COMPOSE.parent / source).exists() if source.startswith(".") else source in compose["volumes"]
        if service["image"] == "outrider":
            assert service["command"][0] in SCRIPTS
            assert settings_of(service["environment"]) <= KNOWN_SETTINGS
            assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "ports must be published on loopback only"
    arguments = services["postgres"]["command"]
    assert "wal_level=logical" in arguments
    assert any(argument.startswith("max_slot_wal_keep_size=") for argument in arguments)
    assert services["scheduler"]["deploy"]["replicas"] == 2
    scraped = documents(DEPLOY / "prometheus/prometheus.yml")[0]["scrape_configs"]
    names = {name for job in scraped for discovery in job["dns_sd_configs"] for name in discovery["names"]}
    assert names == {"relay", "standby", "scheduler", "worker"}
    example = re.findall(r"^  # (  .+|worker:)$", COMPOSE.read_text(), re.MULTILINE)
    worker = yaml.safe_load("\n".join(example))["worker"]
    assert worker["command"][0] in SCRIPTS
    assert settings_of(worker["environment"]) <= KNOWN_SETTINGS
    assert worker["environment"]["OUTRIDER_HTTP_PORT"] == "9100"


# -- Prometheus -------------------------------------------------------------------------------------------------------


DASHBOARD = DEPLOY / "grafana/outbox.json"


def alerts() -> list[dict[str, Any]]:
    return [rule for group in documents(ALERTS)[0]["groups"] for rule in group["rules"] if "alert" in rule]


def dashboard_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def test_the_alerts_pass_their_own_tests_and_the_dashboard_is_promql(tmp_path: Path) -> None:
    promtool = find_promtool()
    if promtool is None:
        pytest.skip(MISSING)
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(dashboard_expressions())
    ]
    (tmp_path / "dashboard.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    for arguments in (
        ["check", "rules", str(ALERTS), str(tmp_path / "dashboard.yml")],
        ["test", "rules", str(ALERTS.with_suffix(".test.yml"))],
    ):
        ran = subprocess.run([promtool, *arguments], check=False, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_has_a_test_that_sees_it_fire() -> None:
    cases = documents(ALERTS.with_suffix(".test.yml"))[0]["tests"]
    fired = {test["alertname"] for case in cases for test in case.get("alert_rule_test", []) if test["exp_alerts"]}
    assert fired == {rule["alert"] for rule in alerts()}


def test_alerts_and_panels_have_one_value_for_each_namespace() -> None:
    aggregation = re.compile(r"\b(?:sum|max|min|avg|count|group)\b(?! by \(namespace\b)")
    rules = [rule["expr"] for group in documents(ALERTS)[0]["groups"] for rule in group["rules"]]
    for expression in [*rules, *dashboard_expressions()]:
        assert not aggregation.search(re.sub(r'"[^"]*"', "", expression)), expression


def test_every_selector_of_the_dashboard_follows_its_namespace_variable() -> None:
    for expression in dashboard_expressions():
        names = re.findall(r"\b(?:outbox|process)_[a-z_]+(?![a-z_|\"])", expression)
        by_name = re.findall(r"__name__=~", expression)
        assert expression.count('namespace=~"$namespace"') == len(names) + len(by_name), expression
    variables = {each["name"]: each for each in json.loads(DASHBOARD.read_text())["templating"]["list"]}
    assert set(variables) == {"datasource", "namespace", "runbook_base"}
    namespace = variables["namespace"]
    assert (namespace["multi"], namespace["includeAll"]) == (True, True)
    # It also matches series that have no such label.
    assert namespace["allValue"] == ".*"


@pytest.mark.parametrize(
    ("chosen", "series", "expected"),
    [
        (".*", {"": 1}, {"": 1}),  # "All", and no label
        (".*", {'namespace="shop"': 1, 'namespace="mail"': 0}, {'namespace="shop"': 1, 'namespace="mail"': 0}),
        ("shop|bills", {'namespace="shop"': 1, 'namespace="mail"': 0}, {'namespace="shop"': 1}),
        (".*", {}, {"": 0}),
    ],
)
def test_the_dashboard_counts_the_active_relays_of_the_chosen_namespaces(
    tmp_path: Path, chosen: str, series: dict[str, int], expected: dict[str, int]
) -> None:
    promtool = find_promtool()
    if promtool is None:
        pytest.skip(MISSING)
    (panel,) = (each for each in json.loads(DASHBOARD.read_text())["panels"] if each["title"] == "Relays active")
    case = {
        "input_series": [
            {"series": f"outbox_relay_active{{{each}}}", "values": f"{n}x5"} for each, n in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": panel["targets"][0]["expr"].replace("$namespace", chosen),
                "eval_time": "5m",
                "exp_samples": [{"labels": f"{{{each}}}", "value": value} for each, value in expected.items()],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [{"interval": "1m", **case}]}))
    command = [promtool, "test", "rules", str(tmp_path / "test.yml")]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_statuses_of_dead_letters_are_those_that_a_worker_counts() -> None:
    (rule,) = (rule for rule in alerts() if rule["alert"] == "OutboxHandlerDeadLetters")
    (buried,) = re.findall(r'status=~"([^"]+)"', rule["expr"])
    assert set(buried.split("|")) == set(DEAD_LETTER_REASONS)
    (others,) = {each for text in dashboard_expressions() for each in re.findall(r'status!~"([^"]+)"', text)}
    assert set(others.split("|")) == set(STATUSES) - set(DEAD_LETTER_REASONS)


def anchors_of(page: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_alerts_and_dashboard_leads_to_a_section_below_the_base_that_the_manual_says_how_to_set(
    tmp_path: Path,
) -> None:
    (command,) = re.findall(r"^ *\$ (sed -i .* deploy/prometheus/.*)$", MANUAL.read_text(), re.MULTILINE)
    for folder in ("prometheus", "grafana"):
        shutil.copytree(DEPLOY / folder, tmp_path / "deploy" / folder)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, timeout=60)
    base = command.split("#")[2]
    rules = documents(tmp_path / "deploy/prometheus/outbox-alerts.yml")[0]["groups"]
    links = {rule["annotations"]["runbook_url"] for group in rules for rule in group["rules"] if "alert" in rule}
    dashboard = json.loads((tmp_path / "deploy/grafana/outbox.json").read_text())
    (variable,) = (each for each in dashboard["templating"]["list"] if each["name"] == "runbook_base")
    assert variable["type"] == "constant"
    assert {variable["query"], variable["current"]["value"]} == {base}
    of_panels = [link["url"] for panel in dashboard["panels"] for link in panel.get("links", [])]
    of_dashboard = [link["url"] for link in dashboard["links"]]
    assert len(of_panels) > 20
    links |= {url.replace("${runbook_base:raw}", base) for url in (*of_panels, *of_dashboard)}
    for link in links:
        assert link.startswith(f"{base}/"), link
        page, _, anchor = link.removeprefix(f"{base}/").partition("#")
        assert anchor in anchors_of(page), link
    runbook = MANUAL.read_text().split("\n## Runbook\n")[1].split("\n## ")[0]
    assert all(f"`{rule['alert']}`" in runbook for rule in alerts())
    if (promtool := find_promtool()) is not None:
        tests = str(tmp_path / "deploy/prometheus/outbox-alerts.test.yml")
        ran = subprocess.run([promtool, "test", "rules", tests], check=False, capture_output=True, timeout=60)
        assert ran.returncode == 0, ran.stdout


# -- Debezium ---------------------------------------------------------------------------------------------------------


def test_the_debezium_connector_names_columns_that_exist_and_has_a_slot_of_its_own() -> None:
    configuration = json.loads((DEPLOY / "debezium/outbox-connector.json").read_text())["config"]
    table = (ROOT / "sql/schema.sql").read_text().split('CREATE TABLE :"schema".outbox (')[1].split("CONSTRAINT")[0]
    columns = set(re.findall(r"^    (\w+) ", table, re.MULTILINE))
    router = {name.removeprefix("transforms.outbox."): value for name, value in configuration.items()}
    named = {value for name, value in router.items() if name.startswith("table.field.") or name == "route.by.field"}
    named |= {each.split(":")[0] for each in router["table.fields.additional.placement"].split(",")}
    assert len(named) == 10
    assert named <= columns
    assert configuration["slot.name"] != RelaySettings.model_fields["slot"].default
    assert configuration["publication.name"] == RelaySettings.model_fields["publication"].default
    assert configuration["publication.autocreate.mode"] == "disabled"


# -- Terraform --------------------------------------------------------------------------------------------------------


def terraform() -> dict[str, Any]:
    """The blocks of all files by `type.name`, without the parser's quotes."""
    blocks: dict[str, Any] = {}
    for file in sorted((DEPLOY / "terraform/rabbitmq").glob("*.tf")):
        with file.open() as opened:
            parsed = hcl2.load(opened)
        for kind in ("resource", "variable"):
            for block in parsed.get(kind, []):
                for outer, inner in block.items():
                    names = {outer: inner} if kind == "variable" else {f"{outer}.{n}": b for n, b in inner.items()}
                    blocks |= {name.replace('"', ""): body for name, body in names.items()}
    return blocks


def pattern(*names: str) -> str:
    return "^(" + "|".join(names).replace(".", r"\.") + ")$"


def add_user(server: RabbitMQ, vhost: str, *, configure: str, write: str, read: str) -> str:
    """A user with these permissions and no tags; the URL to connect as it. One call: each starts an Erlang VM."""
    name = f"user-{uuid.uuid4().hex[:10]}"
    permissions = ", ".join("<<" + json.dumps(each) + ">>" for each in (configure, write, read))
    server.ctl(
        "eval",
        f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"secret">>, <<"test">>), '
        f'rabbit_auth_backend_internal:set_permissions(<<"{name}">>, <<"{vhost}">>, {permissions}, <<"test">>).',
    )
    return f"amqp://{name}:secret@127.0.0.1:{server.port}/{vhost}"


def test_users_of_the_terraform_module_have_exactly_the_permissions_they_need(
    stage: Stage, rabbit_vhost: Broker, rabbitmq_server: SharedRabbitMQ
) -> None:
    blocks = terraform()
    (publisher,) = blocks["rabbitmq_permissions.publisher"]["permissions"]
    assert publisher["write"] == r'"^(${replace(join("|", local.writable), ".", "\\.")})$"'
    assert (publisher["configure"], publisher["read"]) == ("${var.publisher_configure}", '"^$"')
    (consumer,) = blocks["rabbitmq_permissions.consumer"]["permissions"]
    assert consumer["read"] == r'"^(${replace(join("|", var.consumers[each.key].queues), ".", "\\.")})$"'
    assert (consumer["configure"], consumer["write"]) == ('"^$"', '"^$"')
    nothing = blocks["publisher_configure"]["default"].strip('"')
    assert nothing == "^$"

    rabbit_vhost.declare_exchange("shop.events", type="topic")
    queue, other = rabbit_vhost.declare_queue("billing"), rabbit_vhost.declare_queue("mail")
    rabbit_vhost.bind(queue, "shop.events", "order.*")
    server, vhost = rabbitmq_server.embedded, rabbit_vhost.url.rpartition("/")[2]
    assert server is not None
    url = add_user(server, vhost, configure=nothing, write=pattern("shop", "shop.events"), read=nothing)
    consumer_url = add_user(server, vhost, configure=nothing, write=nothing, read=pattern(queue))

    stage.start_relay(url, max_attempts=1)
    (delivered,) = stage.insert("order.paid", exchange="shop.events")
    refused = {
        "unroutable": stage.insert("no.binding", exchange="shop.events"),
        "default exchange": stage.insert(queue),
        "declares": stage.insert("order.paid", exchange="shop.events", declarations=json.dumps([{"name": "new"}])),
    }
    wait_for(lambda: len(stage.rows("outbox_dead_letter")) == 3, deadline_seconds=60)
    errors = {row["event_id"]: row["last_error"] for row in stage.rows("outbox_dead_letter")}
    assert "NoRoute" in errors[refused["unroutable"][0]]
    assert "AccessRefused" in errors[refused["default exchange"][0]]
    assert "AccessRefused" in errors[refused["declares"][0]]
    stage.wait_until_empty()

    with Connection(consumer_url) as connection:
        with connection.channel() as channel:
            assert channel.basic_get(queue, no_ack=True).properties["message_id"] == delivered
        with pytest.raises(AccessRefused), connection.channel() as channel:
            channel.basic_get(other)
    for user in (url, consumer_url):
        with Connection(user) as connection:
            with pytest.raises(AccessRefused), connection.channel() as channel:
                channel.queue_declare(queue="mine")
            with pytest.raises(AccessRefused), connection.channel() as channel:
                channel.exchange_declare("mine", "topic")
    with Connection(url) as connection, pytest.raises(AccessRefused), connection.channel() as channel:
        channel.basic_get(queue)


# -- Operations manual-------------------------------------------------------------------------------------------------

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(DEPLOY.rglob("*.md"))]
COMMAND = re.compile(r"(?<![\w/.-])(?<!from )(?:outrider|cdc-relay|retry-scheduler) [a-z-][^`|\n]*")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def rows_of(section: str) -> list[list[str]]:
    """The cells of a section's first table, without its header."""
    text = MANUAL.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_manual_lists_every_metric_with_its_labels_and_every_error_with_its_kind() -> None:
    metrics = {name.strip("`"): tuple(re.findall(r"\w+", labels)) for name, labels, *_ in rows_of("Metrics")}
    assert metrics == {spec.name: spec.labels for spec in CATALOGUE}
    errors = {name.strip("`"): kind for name, kind, _ in rows_of("Errors")}
    assert errors == {name: str(policy.kind) for name, policy in POLICIES.items()}


def commands_in(page: Path) -> Iterator[list[str]]:
    """Every command of this project on the page, as a list of words."""
    for code in CODE.findall(page.read_text()):
        for line in code.strip("`").splitlines():
            text = line.removeprefix("$ ").partition(" # ")[0].replace("[", "").replace("]", "")
            for match in re.finditer(
                r"(?<![\w/.-])(?<!from )(?:outrider|cdc-relay|retry-scheduler) [a-z-][^`|\n]*", text
            ):
                words = match[0].rstrip(",;:.").split()
                if re.fullmatch(r"--[a-z-]+|[a-z]+", words[1]):
                    yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_exists_with_its_flags_and_has_help(page: Path) -> None:
    programs: dict[str, click.Command] = {
        "outrider": outrider,
        "cdc-relay": relay_command,
        "retry-scheduler": scheduler,
    }
    for words in commands_in(page):
        command, path = programs[words[0]], list[str]()
        for word in words[1:]:
            if not isinstance(command, click.Group):
                break
            found = command.get_command(click.Context(command), word)
            assert found is not None, f"{' '.join(words)}: there is no {word}"
            command, path = found, [*path, word]
        flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= {*flags, "--help"}, " ".join(words)
        helped = CliRunner().invoke(programs[words[0]], [*path, "--help"])
        assert helped.exit_code == 0, helped.output


def test_unsent_messages_of_kbairaks_outbox_can_be_moved_with_the_sql_of_the_manual(
    stage: Stage, rabbit: Broker
) -> None:
    # The columns of its table that the statement uses.
    stage.connection.execute(
        "CREATE TABLE outbox_table (id serial PRIMARY KEY, routing_key text, body bytea, tracking_ids json,"
        " created_at timestamptz DEFAULT now(), expiration interval, send_after timestamptz, sent_at timestamptz)"
    )
    stage.connection.execute(
        "INSERT INTO outbox_table (routing_key, body, tracking_ids, expiration, send_after, sent_at) VALUES"
        " ('user.created', '{\"id\": 1}', '[\"a\"]', NULL, now(), NULL),"
        " ('user.created', '{\"id\": 2}', '[\"b\"]', '1 hour', now(), NULL),"
        " ('user.created', '{\"id\": 3}', '[\"c\"]', NULL, now() + interval '1 day', NULL),"
        " ('user.created', '{\"id\": 4}', '[\"d\"]', NULL, now(), now())"
    )
    (statements,) = re.findall(r"```sql\n(.*?)```", MANUAL.read_text().split("### Moving from kbairak")[1], re.DOTALL)
    exchange = rabbit.declare_exchange(type="topic")
    queue = rabbit.declare_queue()
    rabbit.bind(queue, exchange, "user.*")
    stage.connection.execute(statements.replace("'outbox'", f"'{exchange}'"))
    stage.run_service("outrider.retry_scheduler", "--once", env=stage.environment(rabbit.url)).wait(60)
    first, second = rabbit.get_all(queue, 2, 30)
    assert (first.json(), first.headers["x-outbox-tracking-ids"]) == ({"id": 1}, '["a"]')
    assert second.json() == {"id": 2}
    assert 0 < int(second.properties["expiration"]) <= 3_600_000
    assert first.properties.get("expiration") is None
    assert [row["due"] for row in stage.rows()] == [False]
    assert stage.connection.execute("SELECT id FROM outbox_table").fetchall() == [(4,)]
