"""What the documentation offers for Prometheus and Grafana speaks of metrics as they are exported, and can be used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from django_idempotency import prometheus
from django_idempotency.core.counted import Counted
from tests.support.walkthrough import REPOSITORY

FOLDER = REPOSITORY / "docs/monitoring"
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
RUNBOOK = (REPOSITORY / "docs/how-to/alerts.md").read_text(encoding="utf-8")
MANUAL = "https://django-idempotency.readthedocs.io/en/stable/how-to/alerts.html"
LABELS = {"route", "outcome", "database", "le"}


def exported() -> set[str]:
    """The names of what Prometheus stores."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    families = [
        *prometheus.OUTCOMES.describe(), *prometheus.AGES.describe(), *prometheus.GaugesOfDatabases().describe(),
    ]  # fmt: skip
    return {f"{family.name}{suffix}" for family in families for suffix in suffixes[family.type]}


def targets() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def names(expression: str) -> set[str]:
    return set(re.findall(r"\bdjango_idempotency\w*", expression))


EXPRESSIONS = [*(rule["expr"] for rule in RULES), *targets()]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_label_and_outcome_exists(expression: str) -> None:
    assert names(expression)
    assert names(expression) <= exported()
    assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)) <= LABELS
    for group in re.findall(r"by \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= LABELS
    known = {outcome.value for outcome in Counted}
    for matcher in re.findall(r"outcome(?:=~|!~|!=|=)\"([^\"]*)\"", expression):
        for pattern in matcher.split("|"):
            assert any(re.fullmatch(pattern, outcome) for outcome in known), pattern


def test_every_metric_can_be_seen() -> None:
    seen = set().union(*map(names, EXPRESSIONS))
    assert {name for name in exported() if not name.endswith(("_sum", "_count"))} <= seen


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_why_and_where_to_go(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "why", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"{MANUAL}#{rule['alert'].lower()}"


def test_the_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    assert re.findall(r"^### (Idempotency\w+)$", RUNBOOK, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_variables_of_the_dashboard_are_declared() -> None:
    declared = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(DASHBOARD["panels"])))
    assert used - {"__rate_interval"} == declared


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


@pytest.fixture
def promtool() -> str:
    if path := shutil.which("promtool"):
        return path
    if os.environ.get("CI") == "true":
        pytest.fail("promtool must be installed in CI")
    pytest.skip("there is no promtool on the PATH")


@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml")])
def test_promtool_agrees(promtool: str, arguments: tuple[str, ...]) -> None:
    """The second one plays each alert: it fires where it should, and not just before."""
    told = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert told.returncode == 0, f"{told.stdout}{told.stderr}"


def test_every_alert_is_played() -> None:
    """Silence alone proves nothing: each fires at least once."""
    played = (FOLDER / "alerts.test.yml").read_text(encoding="utf-8")
    firing = set(re.findall(r"labels: '\{alertname=\"(\w+)\"", played))
    assert firing == {rule["alert"] for rule in RULES}
