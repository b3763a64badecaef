"""Inside Django's own TestCase, as a project's tests are written: both modes work, and nothing of theirs changes."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import TestCase, override_settings
from django.urls import path

from example_project.payments.models import Transfer
from tests.support.modes import TRANSACTIONAL

from .site import KEY, Handling, assert_replays, effect, problem, records, rows
from .table import answers, api_exception, raises
from .ways import WAYS, Reply


class Routes:
    """One endpoint a way and mode: ``/viewset/atomic/`` and so on."""

    def __init__(self, *does):
        self.handler = Handling(*does)
        self.urlpatterns = [
            path(f"{name}/{mode.value}/", way(self.handler, {"mode": mode}, f"{name}_{mode.value}"))
            for name, way in WAYS.items()
            for mode in TRANSACTIONAL
        ]

    def __iter__(self):
        for pattern in self.urlpatterns:
            yield f"/{pattern.pattern}"


class InsideATestCase(TestCase):
    @classmethod
    def setUpTestData(cls):
        cls.ann = User.objects.create(username="ann")
        effect("of the class")

    def setUp(self):
        self.client.force_login(self.ann)
        self.client.raise_request_exception = False

    def send(self, to, key="k", **body):
        return self.client.post(to, body, content_type="application/json", headers={KEY: key})

    def test_a_success_and_its_replays(self):
        routes = Routes(answers())
        with override_settings(ROOT_URLCONF=routes):
            for to in routes:
                before = rows()
                first = self.send(to)
                assert first.status_code == 201
                assert_replays(self.send(to), first)
                assert problem(self.send(to, other=1)) == "key-reused"
                assert rows() == before + 1

    def test_a_refusal_takes_the_views_writes_and_nothing_of_the_tests(self):
        routes = Routes(answers(400))
        with override_settings(ROOT_URLCONF=routes):
            for to in routes:
                effect("of the test")
                before = rows()
                assert self.send(to).status_code == 400
                assert (rows(), records()) == (before, 0)

    def test_a_failure_leaves_the_test_usable(self):
        routes = Routes(raises(RuntimeError), lambda call: connection.cursor().execute("SELECT nonsense"))
        with override_settings(ROOT_URLCONF=routes):
            for to in routes:
                assert self.send(to).status_code == 500
                assert (rows(), records()) == (1, 0)

    def test_a_decline_that_is_raised(self):
        routes = Routes(raises(lambda: api_exception(402)))
        with override_settings(ROOT_URLCONF=routes):
            for to in [each for each in routes if "function" not in each and "view_class" not in each]:
                first = self.send(to)
                assert first.status_code == 402
                assert_replays(self.send(to), first)
                assert rows() == 1

    def test_hooks_are_the_projects_own(self):
        def handle(call):
            transaction.on_commit(ran)
            return answers()(call)

        def ran():
            called.append(1)

        called = []
        routes = Routes(handle)
        with override_settings(ROOT_URLCONF=routes):
            for to in routes:
                with self.captureOnCommitCallbacks(execute=True) as callbacks:
                    self.send(to)
                    self.send(to)
                assert callbacks == [ran]
        assert len(called) == len(routes.urlpatterns)

    def test_settings_of_the_session_are_as_they_were(self):
        if connection.vendor != "postgresql":
            self.skipTest("speaks PostgreSQL")
        names = ("lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit", "enable_seqscan")
        before = [self.show(name) for name in names]
        routes = Routes(answers(), answers(400), raises(RuntimeError))
        with override_settings(ROOT_URLCONF=routes):
            for to in routes:
                self.send(to)
                assert [self.show(name) for name in names] == before

    def show(self, name):
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW {name}")
            return cursor.fetchone()[0]

    def test_a_block_of_the_tests_own_around_the_request_is_loud(self):
        routes = Routes(lambda call: Reply(201, {"done": True}))
        with override_settings(ROOT_URLCONF=routes):
            for to in routes:
                with transaction.atomic():
                    assert self.send(to).status_code == 500
        assert (routes.handler.entered, records()) == (0, 0)

    def test_what_one_test_records_the_next_does_not_find(self):
        """With its twin below: whichever runs second would find the other's record."""
        assert records() == 0
        self.record()

    def test_what_the_next_test_records_this_one_does_not_find(self):
        assert records() == 0
        self.record()

    def record(self):
        routes = Routes(answers())
        with override_settings(ROOT_URLCONF=routes):
            for to in routes:
                assert self.send(to).status_code == 201
        assert Transfer.objects.exclude(memo="of the class").count() == len(routes.urlpatterns)
