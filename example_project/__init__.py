"""A small payments API that shows django_idempotency at work, and that the scenario tests run against."""
