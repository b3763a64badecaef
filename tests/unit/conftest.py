"""How properties are tried."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No deadline for a single example: on a busy machine it measures the neighbours. What has to be fast has
# a test that says so.
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
