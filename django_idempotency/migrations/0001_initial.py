from django.db import migrations, models

from django_idempotency.storage.schema import CreateKeyTable, CreateTombstoneTable


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        CreateTombstoneTable(
            name="Tombstone",
            fields=[
                (
                    "id",
                    models.UUIDField(editable=False, help_text="That of the key.", primary_key=True, serialize=False),
                ),
                ("fingerprint", models.BinaryField(verbose_name="fingerprint")),
                ("fingerprint_scheme", models.SmallIntegerField(verbose_name="fingerprint scheme")),
                ("forget_at", models.DateTimeField(verbose_name="forget at")),
            ],
            options={
                "verbose_name": "tombstone",
                "verbose_name_plural": "tombstones",
                "db_table": "idempotency_tombstone",
                "default_permissions": (),
            },
        ),
        CreateKeyTable(
            name="IdempotencyKey",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        editable=False,
                        help_text="The first 16 bytes of a SHA-256 over scope and key.",
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("state", models.CharField(max_length=16, verbose_name="state")),
                (
                    "scope",
                    models.TextField(help_text="Whose key it is, and for which operation.", verbose_name="scope"),
                ),
                ("key", models.CharField(help_text="What the client sent.", max_length=255, verbose_name="key")),
                ("fingerprint", models.BinaryField(verbose_name="fingerprint")),
                (
                    "fingerprint_scheme",
                    models.SmallIntegerField(
                        help_text="The version of the rules that made the fingerprint.",
                        verbose_name="fingerprint scheme",
                    ),
                ),
                ("mode", models.CharField(max_length=16, verbose_name="mode")),
                (
                    "owner_token",
                    models.UUIDField(
                        help_text="The fencing token that every write of the owner is conditioned on.",
                        verbose_name="owner token",
                    ),
                ),
                ("attempts", models.SmallIntegerField(default=1, verbose_name="attempts")),
                ("claimed_at", models.DateTimeField(verbose_name="claimed at")),
                ("lease_expires_at", models.DateTimeField(null=True, verbose_name="lease expires at")),
                ("sealed_at", models.DateTimeField(null=True, verbose_name="sealed at")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
                ("response_status", models.SmallIntegerField(null=True, verbose_name="response status")),
                ("response_headers", models.JSONField(null=True, verbose_name="response headers")),
                (
                    "response_body",
                    models.BinaryField(
                        help_text="Empty where the policy keeps no body, or it was over the limit.",
                        null=True,
                        verbose_name="response body",
                    ),
                ),
                (
                    "operation",
                    models.CharField(
                        help_text="Set once it has begun.", max_length=255, null=True, verbose_name="operation"
                    ),
                ),
                ("parameters", models.JSONField(null=True, verbose_name="parameters")),
                (
                    "steps",
                    models.JSONField(help_text="What became of each phase and call.", null=True, verbose_name="steps"),
                ),
                (
                    "recovery_point",
                    models.CharField(
                        help_text="The last finished phase or call.",
                        max_length=255,
                        null=True,
                        verbose_name="recovery point",
                    ),
                ),
                ("held_reason", models.TextField(null=True, verbose_name="held because")),
                ("held_at", models.DateTimeField(null=True, verbose_name="held since")),
                (
                    "sweeps",
                    models.SmallIntegerField(default=0, help_text="How often a sweeper tried.", verbose_name="sweeps"),
                ),
                ("sweep_after", models.DateTimeField(null=True, verbose_name="sweep after")),
                (
                    "stale_after",
                    models.FloatField(
                        help_text="Seconds from the end of the lease until a sweeper may take over.",
                        null=True,
                        verbose_name="stale after",
                    ),
                ),
            ],
            options={
                "verbose_name": "idempotency key",
                "verbose_name_plural": "idempotency keys",
                "db_table": "idempotency_key",
                "permissions": [
                    ("release_idempotencykey", "Can release a key under which something may have happened"),
                    ("resolve_idempotencykey", "Can say what became of a stuck key"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("lease_expires_at__isnull", False),
                                ("response_status__isnull", True),
                                ("sealed_at__isnull", True),
                                ("state", "in_flight"),
                            ),
                            models.Q(
                                ("expires_at__isnull", False),
                                ("lease_expires_at__isnull", True),
                                ("response_status__isnull", False),
                                ("sealed_at__isnull", False),
                                ("state", "sealed"),
                            ),
                            _connector="OR",
                        ),
                        name="idempotency_key_state",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="OutcomeCount",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "minute", "route", "outcome", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "minute",
                    models.DateTimeField(
                        help_text="When it began, by the clock of the process that counted.", verbose_name="minute"
                    ),
                ),
                (
                    "route",
                    models.CharField(
                        help_text="The operation: view, action and method. Cut off where it is longer.",
                        max_length=255,
                        verbose_name="route",
                    ),
                ),
                (
                    "outcome",
                    models.CharField(help_text="One of core.counted.Counted.", max_length=32, verbose_name="outcome"),
                ),
                ("n", models.BigIntegerField(verbose_name="how often")),
            ],
            options={
                "verbose_name": "count of outcomes",
                "verbose_name_plural": "counts of outcomes",
                "db_table": "idempotency_outcome_count",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="OldestInFlight",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "minute", "route", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "minute",
                    models.DateTimeField(
                        help_text="When it was read, by the clock of the process that did.", verbose_name="minute"
                    ),
                ),
                ("route", models.CharField(max_length=255, verbose_name="route")),
                (
                    "seconds",
                    models.BigIntegerField(help_text="By the clock of the database.", verbose_name="age in seconds"),
                ),
            ],
            options={
                "verbose_name": "age of the oldest in flight",
                "verbose_name_plural": "ages of the oldest in flight",
                "db_table": "idempotency_oldest_in_flight",
                "default_permissions": (),
            },
        ),
    ]
