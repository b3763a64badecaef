"""The ids of the checks. The documentation has a heading for each."""

from __future__ import annotations

from django.core import checks

IDS: dict[str, str] = {
    "E001": "A setting in IDEMPOTENCY is unknown or has a wrong value.",
    "E002": "A database that should hold keys is of an unsupported kind.",
    "E003": "Django talks to PostgreSQL through psycopg2.",
    "E004": "Keys would go to a database that IDEMPOTENCY['DATABASES'] does not list.",
    "E005": "A router keeps the table of keys out of a database that IDEMPOTENCY['DATABASES'] lists.",
    "E006": "Keys would go to another database than the effects that they protect.",
    "E007": "ATOMIC mode under an isolation level other than READ COMMITTED, by the settings.",
    "W008": "SQLite without transaction_mode IMMEDIATE.",
    "W009": "On SQLite, a lease is shorter than the wait for the database's lock.",
    "W010": "FAILPOINTS_ENABLED in production.",
    "E011": "A database that holds keys has AUTOCOMMIT off.",
    "W012": "OBSERVE_ONLY: no request is protected.",
    "E020": "A decorator or a policy stands on a view and is not in force.",
    "E021": "A policy cannot be kept.",
    "E022": "ATOMIC_REQUESTS wraps a protected view, because a decorator hides that the view opens the transactions.",
    "W023": "Anonymous callers of a view have no scope.",
    "E024": "A schema-per-tenant project without an explicit scope.",
    "E025": "Two views come to the same operation name.",
    "W026": "Two views were given the same operation name.",
    "W027": "A middleware with process_template_response comes too late for recorded responses.",
    "W028": "Routes of one view class with other arguments come to the same operation name.",
    "W029": "A success leaves the key free, and what it reports is rolled back.",
    "E030": "A database that holds keys cannot be reached.",
    "W031": "Migrations are not applied.",
    "E032": "The table of keys, or a function that belongs to it, is missing.",
    "E033": "A database that should hold keys is read-only.",
    "E034": "ATOMIC mode under an isolation level other than READ COMMITTED, by the server.",
    "E035": "The role lacks rights on the table of keys.",
    "E036": "Partitions do not cover the retention, and this role cannot make them.",
    "W037": "Partitions end soon, or are left to the next request to make.",
    "W038": "A duplicate may wait so long that the owner of its key becomes the victim of a deadlock.",
    "W039": "The wait of a duplicate is ended by statement_timeout.",
    "W040": "A call of an operation may take longer than its lease is renewed.",
    "W041": "A call that has no answer becomes a person's before a sweeper comes to it.",
    "W050": "No sweeper has run, or none gets through.",
    "W051": "A call that has no answer will soon be forgotten by the other side.",
    "W052": "Vacuum does not keep up with the claims in flight.",
    "W053": "A key is left to a person.",
}
"""By the end of the id (``django_idempotency.E001``). E stops ``check`` and whatever runs it; W does not, unless
it is about the store's health and ``check`` itself asks a database."""


def found(id: str, message: str, hint: str, obj: object = None) -> checks.CheckMessage:
    """A message of the kind that its id says."""
    level = checks.Error if id.startswith("E") else checks.Warning
    return level(message, hint=hint, obj=obj, id=f"django_idempotency.{id}")
