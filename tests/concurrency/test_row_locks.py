"""Rows that a duplicate locks before it comes to its key, and that the owner's view wants."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.urls import path
from rest_framework.authentication import TokenAuthentication
from rest_framework.decorators import api_view, authentication_classes

from django_idempotency.drf import idempotent
from tests.support.calls import ask
from tests.support.charges_urls import deposit
from tests.support.modes import ATOMIC
from tests.support.payer import effects
from tests.support.waiting import eventually, until_waiting

AFTER_ITS_CHECK = 1.1
"""Seconds; deadlock_timeout is one second unless the server says otherwise."""

pytestmark = [pytest.mark.urls(__name__), pytest.mark.usefixtures("atomic_requests")]


class NotesThatTheUserWasHere(TokenAuthentication):
    """Writes to the user's row, as many projects do, and so locks it until the transaction ends."""

    does_so = False

    def authenticate(self, request):
        user, token = super().authenticate(request)
        if self.does_so:
            touch(user)
        return user, token


def touch(user):
    User.objects.filter(pk=user.pk).update(first_name="here")


@idempotent(mode=ATOMIC)
@api_view(["POST"])
@authentication_classes([NotesThatTheUserWasHere])
def deposit_and_touch(request):
    touch(request.user)
    return deposit(request)


urlpatterns = [path("atomic/deposits/", deposit_and_touch)]


@pytest.fixture
def meet(crowd, payer, pausing, monkeypatch):
    """The owner has the key, the duplicate has the row and waits for the key; then the owner asks for the row."""

    def meet(request, *, after):
        with pausing.armed("after_claim") as pause:
            owner = crowd.start(ask, request, token=payer.token)
            pause.wait()
            monkeypatch.setattr(NotesThatTheUserWasHere, "does_so", True)
            duplicate = crowd.start(ask, request, token=payer.token)
            (session,) = until_waiting()
            eventually(lambda: waits_for(session, after), f"it waits for {after:g} s")
            pause.go()
        return owner.result(30), duplicate.result(30)

    return meet


def waits_for(session, seconds):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT clock_timestamp() - query_start >= make_interval(secs => %s) FROM pg_stat_activity WHERE pid = %s",
            (seconds, session),
        )
        return cursor.fetchone()[0]


@pytest.mark.parametrize("after", [0.0, AFTER_ITS_CHECK], ids=["at once", "after the duplicate's deadlock check"])
def test_the_owner_is_never_the_one_that_gives_way(meet, payer, after):
    """The duplicate looks for deadlocks before the owner can, and then gives up before the owner looks."""
    request = payer.deposit(ATOMIC)
    owner, duplicate = meet(request, after=after)
    assert (owner.status, owner.replayed) == (201, False)
    assert (duplicate.status, duplicate.problem, duplicate.retry_after) == (409, "in-progress", 1)
    assert ask(request, token=payer.token).replayed
    assert effects(request) == 1


def test_with_a_longer_wait_the_owner_may_give_way_and_there_is_one_effect_still(meet, payer, configure):
    """Why the wait should stay below twice deadlock_timeout. The database's choice is an answer, not an error."""
    configure(MAX_WAIT=timedelta(seconds=10))
    request = payer.deposit(ATOMIC)
    owner, duplicate = meet(request, after=AFTER_ITS_CHECK)
    assert (owner.status, owner.problem, owner.retry_after) == (503, "transaction-conflict", 1)
    assert (duplicate.status, duplicate.replayed) == (201, False)
    retry = ask(request, token=payer.token)
    assert (retry.replayed, retry.body) == (True, duplicate.body)
    assert effects(request) == 1
