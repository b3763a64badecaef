"""Parts of the reference that the package itself writes, so that they cannot fall behind it.

A line ``<!-- from source: settings -->`` in a page is replaced by what the function of that name below makes of the
code, in Markdown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import timedelta
from http import HTTPStatus
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from django.core.management import load_command_class
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from django_idempotency import IdempotencyPolicy, failpoints
from django_idempotency.checks import IDS
from django_idempotency.conf import SETTINGS
from django_idempotency.core import errors
from django_idempotency.core.headers import NEVER_REPLAYED, NEVER_REPLAYED_PREFIXES
from django_idempotency.core.outcomes import RELEASED_STATUSES
from django_idempotency.http.problems import STATUSES, problem_response
from django_idempotency.operations import derive_key, operation

_LINE = re.compile(r"^<!-- from source: (?P<name>[\w-]+)(?: (?P<argument>\S+))? -->$", re.MULTILINE)


def fill_in(_: Sphinx, docname: str, source: list[str]) -> None:
    def made(match: re.Match[str]) -> str:
        name, argument = match["name"], match["argument"]
        if name not in PARTS:
            raise SphinxError(f"{docname}: nothing is made from source under the name {name!r}.")
        return PARTS[name](*filter(None, [argument]))

    source[0] = _LINE.sub(made, source[0])


def settings() -> str:
    policy_fields = IdempotencyPolicy.__dataclass_fields__

    def key(name: str) -> str:
        field = name.lower()
        shown = _row("policy", f"field-{_slug(name)}", name) if field in policy_fields else f"`{name}`"
        return _target(_anchor(name)) + shown

    return _table(
        ("Key", "Default", "Meaning"),
        ((key(name), _shown(setting.default), setting.help) for name, setting in SETTINGS.items()),
    )


def policy() -> str:
    described = _parameters(IdempotencyPolicy)
    missing = [each.name for each in fields(IdempotencyPolicy) if each.name not in described]
    if missing:
        raise SphinxError(f"The docstring of IdempotencyPolicy says nothing of {missing}.")
    return _table(
        ("Field", "Falls back to", "Meaning"),
        (
            (f"{_target('field-' + _slug(each.name))}`{each.name}`", _fallback(each.name), described[each.name])
            for each in fields(IdempotencyPolicy)
        ),
    )


def _fallback(field: str) -> str:
    name = field.upper()
    if name not in SETTINGS:
        return "none"
    return f"{_row('settings', _anchor(name), name)}, {_shown(SETTINGS[name].default)}"


def problems() -> str:
    return _table(
        ("Status", "Problem", "Title", "`Retry-After`"),
        (
            (
                str(status),
                f"[`{cls.slug}`](#{cls.slug})",
                cls.title,
                "no" if _sample(cls).retry_after is None else "yes",
            )
            for cls, status in STATUSES.items()
        ),
    )


def problem(slug: str) -> str:
    for cls, status in STATUSES.items():
        if cls.slug == slug:
            error = _sample(cls)
            members = "".join(f", member `{name}`" for name in error.members)
            return (
                f"*{cls.title}.* `{status} {HTTPStatus(status).phrase}`, {_retry_after(error)}{members}.\n\n"
                f"> {error.detail}"
            )
    raise SphinxError(f"There is no problem {slug!r}.")


def problem_document() -> str:
    response = problem_response(errors.KeyReused())
    headers = "\n".join(f"{name}: {value}" for name, value in response.items())
    members = ",\n".join(f"  {line}" for line in re.findall(r'"\w+": (?:"[^"]*"|\d+)', response.content.decode()))
    status = f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}"
    return f"```http\n{status}\n{headers}\n\n{{\n{members}\n}}\n```"


_SAMPLES: dict[type[errors.IdempotencyError], tuple[Any, ...]] = {
    errors.MissingKey: (SETTINGS["HEADER"].default,),
    errors.MalformedKey: ("(what is wrong with it)",),
    errors.MalformedFirstSent: ("(what is wrong with it)",),
    errors.TooLate: (800_000.0, 604_800.0),
    errors.MalformedBody: ("(what is wrong with it)",),
    errors.StoreUnavailable: ("",),
    errors.ResponseNotStored: (201,),
}


def _sample(cls: type[errors.IdempotencyError]) -> errors.IdempotencyError:
    return cls(*_SAMPLES.get(cls, ()))


def _retry_after(error: errors.IdempotencyError) -> str:
    return "no `Retry-After`" if error.retry_after is None else "`Retry-After` in seconds"


def released() -> str:
    return _table(("Status", "Meaning"), ((str(each), HTTPStatus(each).phrase) for each in sorted(RELEASED_STATUSES)))


def never_replayed() -> str:
    names = [*sorted(NEVER_REPLAYED), *(f"{prefix}*" for prefix in NEVER_REPLAYED_PREFIXES)]
    return ", ".join(f"`{name}`" for name in names) + "."


def points() -> str:
    return ", ".join(f"`{point}`" for point in failpoints.POINTS) + "."


def declaration() -> str:
    """What ``@operation`` takes, beside fields of the policy."""
    described = _parameters(operation)
    given = {name: each.default for name, each in signature(operation).parameters.items()}
    missing = [name for name in given if name not in described]
    if missing:
        raise SphinxError(f"The docstring of operation says nothing of {missing}.")
    return _table(
        ("Argument", "Default", "Meaning"),
        (
            (f"`{name}`", "" if default is Parameter.empty else _shown(default), described[name])
            for name, default in given.items()
        ),
    )


_GROUPS = {
    "00": "Settings, databases and routers, as the code has them",
    "01": "",
    "02": "Views",
    "03": "Databases, when they are asked",
    "04": "Operations",
    "05": "Health, when the databases are asked",
}


def checks() -> str:
    parts: list[str] = []
    for number, group in _GROUPS.items():
        if group:
            parts.append(f"## {group}")
        parts += [f"### {id}\n\n{_LEVELS[id[0]]}: {text}" for id, text in IDS.items() if id[1:3] == number]
    missing = [id for id in IDS if id[1:3] not in _GROUPS]
    if missing:
        raise SphinxError(f"The page of the checks has no group for {missing}.")
    return "\n\n".join(parts)


_LEVELS = {"E": "Error", "W": "Warning"}


def command(name: str) -> str:
    """The help of each subcommand of a management command."""
    os.environ["COLUMNS"] = "100"  # argparse would ask the terminal
    parser = load_command_class("django_idempotency", name).create_parser("manage.py", name)
    parts = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list its subcommands
        choices = action.choices if isinstance(action.choices, dict) else {}
        parts += [f"## {each}\n\n```text\n{choices[each].format_help().strip()}\n```" for each in choices]
    return "\n\n".join(parts)


def derived_keys() -> str:
    """The vectors that the tests hold the package to."""
    path = Path(__file__).parents[2] / "tests/unit/vectors/derived_keys.json"

    def row(vector: dict[str, str]) -> tuple[str, ...]:
        parts = vector["scope"], vector["key"], vector["step"]
        keys = derive_key(*parts), derive_key(*parts, hexadecimal=True)
        if keys != (vector["uuid"], vector["hexadecimal"]):
            raise SphinxError(f"{path.name} has other keys than the package for {parts}.")
        return tuple(f"`{cell}`" for cell in (*parts, *keys))

    return _table(("Scope", "Key", "Step", "UUID", "Hexadecimal"), map(row, json.loads(path.read_text("utf-8"))))


PARTS: dict[str, Callable[..., str]] = {
    "settings": settings,
    "policy": policy,
    "problems": problems,
    "problem": problem,
    "problem-document": problem_document,
    "released": released,
    "never-replayed": never_replayed,
    "failpoints": points,
    "checks": checks,
    "command": command,
    "derived-keys": derived_keys,
    "operation": declaration,
}


def _parameters(documented: object) -> dict[str, str]:
    found = re.findall(r":param (\w+): (.*?)(?=\n\s*:|\Z)", documented.__doc__ or "", re.DOTALL)
    described = {name: " ".join(text.split()).replace("``", "`") for name, text in found}
    return {name: text[0].upper() + text[1:] for name, text in described.items()}


def _shown(value: object) -> str:
    """A default as a reader would write it."""
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, frozenset):
        return ", ".join(f"`{each}`" for each in sorted(value, reverse=True))
    if isinstance(value, bool) or value is None:
        return f"`{value}`"
    if isinstance(value, int):
        return f"`{value}`" if value % 1024 else f"`{value // 1024} * 1024`"
    if type(value).__module__.startswith("django_idempotency"):
        return f"`{value}`" if hasattr(value, "name") else f"`{type(value).__name__}()`"
    return f"`{value!r}`"


def _duration(value: timedelta) -> str:
    for unit in ("days", "hours", "minutes", "seconds"):
        number = value / timedelta(**{unit: 1})
        if number >= 1:
            return f"{number:g} {unit if number != 1 else unit.removesuffix('s')}"
    return f"{value.total_seconds():g} seconds"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _target(anchor: str) -> str:
    """Lets a row of a table be linked to, in HTML, since Markdown knows targets of headings and blocks only."""
    return f'<span id="{anchor}"></span>'


def _row(page: str, anchor: str, name: str) -> str:
    return f'<a class="reference internal" href="{page}.html#{anchor}"><code class="literal">{name}</code></a>'


def _anchor(setting: str) -> str:
    return f"setting-{_slug(setting)}"


def _slug(name: str) -> str:
    return name.lower().replace("_", "-")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
