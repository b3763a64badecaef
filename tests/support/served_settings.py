"""Settings of the servers that tests start: the example's, with a route for each mode."""

from example_project.settings import *  # noqa: F403

ROOT_URLCONF = "tests.support.charges_urls"
