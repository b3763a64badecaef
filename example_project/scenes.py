"""What the demo shows: what clients, networks and kernels do to an API, and what its books say afterwards."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from django.contrib.auth.models import User

from .card_scenes import CardScenes
from .client import REPLAYED, Answer, Request, at_once, post, send
from .faultproxy import Fault, FaultProxy
from .payments import ledger
from .payments.factories import AccountFactory, AuthorisedChargeFactory, TokenFactory
from .payments.models import Charge, Transfer
from .payments.webhooks import signed_headers
from .processor import Fault as ProcessorFault, ProcessorServer
from .serving import ApiServer
from .story import Story

OPENING_BALANCE = 1000_00
LEASE_SECONDS = 3
"""Short, so that nobody waits long for the lease of a killed worker to lapse. The default is 30."""


class Customer:
    """Somebody with an account and a token."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.account = AccountFactory.create(name=f"{name}'s account", funds=OPENING_BALANCE)
        self.token = TokenFactory.create(user=self.account.owner).key
        self.spent = 0

    def charge(self, amount: int, *, key: str | None = None) -> Request:
        """A request to charge this customer, with a reference to find it by in the books."""
        body = {
            "account": str(self.account.pk),
            "amount": amount,
            "currency": "EUR",
            "reference": f"order-{uuid4()}",
        }
        return Request("/api/charges/", body, key or str(uuid4()))

    @property
    def balance(self) -> int:
        return ledger.balance(self.account)


class Stage:
    """The customers, the API that they call, and the scenes that they play."""

    def __init__(self, story: Story, api: ApiServer, processor: ProcessorServer) -> None:
        self.say, self.claim = story.say, story.claim
        self.api = api
        self.alice, self.bob = Customer("Alice"), Customer("Bob")
        self.cards = CardScenes(self, processor)

    def scenes(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """In their order, with their numbers."""
        for number, (title, scene) in enumerate(self._scenes(), start=1):
            yield f"{number}. {title}", scene

    def _scenes(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "A request and its retry", self.retried
        yield "The answer is lost on its way back", self.answer_lost
        yield "Twenty requests with one key at once", self.in_parallel
        yield "A worker is killed between the effect and its record", self.worker_killed
        yield "A worker is killed while it holds a lease", self.leaseholder_killed
        yield "Two customers with the same key", self.two_customers
        yield "One key, another amount", self.other_amount
        yield "Keys that are none", self.bad_keys
        yield "A decline is a result", self.declined
        yield "A provider delivers one event five times at once", self.webhook
        yield from self.cards.scenes()
        yield "The books", self.books

    def retried(self) -> None:
        charge = self.alice.charge(12_50)
        first = self.post(self.api, self.alice, charge)
        again = self.post(self.api, self.alice, charge)
        self.claim("the charge was made", first.status == 201, first)
        self.claim_replay(first, again)
        self._claim_charged_once(self.alice, charge)

    def answer_lost(self) -> None:
        charge = self.alice.charge(20_00)
        with FaultProxy(self.api.address) as proxy:
            proxy.fault = Fault.CUT
            lost = self.post(proxy, self.alice, charge)
            answered = proxy.next_answered().answers[0]
            self.claim("the client heard nothing", lost.lost, lost)
            self.claim("the API had answered 201", answered.startswith(b"HTTP/1.1 201 "), answered[:20])
            proxy.fault = Fault.PASS
            retry = self.post(proxy, self.alice, charge)
        self.claim("the retry got that very answer", retry.body == answered.partition(b"\r\n\r\n")[2], retry.body)
        self.claim("as a replay", retry.replayed, retry)
        self._claim_charged_once(self.alice, charge)

    def in_parallel(self) -> None:
        charge = self.alice.charge(7_00)
        answers = at_once(20, lambda: post(self.api.url, charge, token=self.alice.token))
        made = [answer for answer in answers if answer.status == 201 and not answer.replayed]
        replays = [answer for answer in answers if answer.replayed]
        waiting = [answer for answer in answers if answer.status == 409]
        self.say(f"{len(made)} made the charge, {len(replays)} got a replay, {len(waiting)} heard 409")
        self.claim("exactly one request made the charge", len(made) == 1, [str(answer) for answer in answers])
        others = len(replays) + len(waiting)
        self.claim("everyone else got a replay or a 409", others == 19, [str(answer) for answer in answers])
        bodies = {answer.body for answer in made + replays}
        self.claim("all replays are the same bytes", len(bodies) == 1, bodies)
        self._claim_charged_once(self.alice, charge)

    def worker_killed(self) -> None:
        charge = self.alice.charge(30_00)
        with self.deadly_api() as (api, marker):
            lost = self.post(api, self.alice, charge)
            self.claim("the worker died and the client heard nothing", lost.lost and marker.exists(), lost)
            self._claim_charged(self.alice, charge, times=0, text="the effect went with it")
            retry = self.post(api, self.alice, charge)
            self.claim("the retry ran", retry.status == 201 and not retry.replayed, retry)
            self.claim_replay(retry, self.post(api, self.alice, charge))
        self._claim_charged_once(self.alice, charge)

    def leaseholder_killed(self) -> None:
        held = AuthorisedChargeFactory.create(account=self.alice.account, amount=15_00)
        self.alice.spent += held.amount
        capture = Request(f"/api/charges/{held.pk}/capture/", {})
        with self.deadly_api() as (api, marker):
            lost = self.post(api, self.alice, capture)
            self.claim("the worker died and the client heard nothing", lost.lost and marker.exists(), lost)
            early = self.post(api, self.alice, capture)
            self.claim("an early retry hears 409", early.status == 409 and early.problem == "in-progress", early)
            told = f"and to come back within the lease (told: {early.retry_after} s)"
            self.claim(told, 0 < early.retry_after <= LEASE_SECONDS, early.retry_after)
            time.sleep(early.retry_after)
            retry = self.post(api, self.alice, capture)
            self.claim("then the retry ran", retry.status == 200 and not retry.replayed, retry)
            self.claim_replay(retry, self.post(api, self.alice, capture))
        captures = held.transfers.filter(kind=Transfer.Kind.CAPTURE).count()
        self.claim("the charge was captured once", captures == 1, captures)

    def two_customers(self) -> None:
        shared = str(uuid4())
        for customer in (self.alice, self.bob):
            charge = customer.charge(5_00, key=shared)
            answer = self.post(self.api, customer, charge)
            self.claim("served, with an answer of their own", answer.status == 201 and not answer.replayed, answer)
            self._claim_charged_once(customer, charge)
        foreign = self.post(self.api, self.bob, self.alice.charge(5_00))
        self.claim("Bob cannot tell whether Alice's account exists", foreign.status == 404, foreign)

    def other_amount(self) -> None:
        charge = self.alice.charge(3_00)
        self.post(self.api, self.alice, charge)
        other = Request(charge.path, {**charge.body, "amount": 4_00}, charge.key)
        refused = self.post(self.api, self.alice, other)
        self.claim("refused as a reused key", (refused.status, refused.problem) == (422, "key-reused"), refused)
        self.claim("without advice to retry", "Retry-After" not in refused.headers, refused.headers)
        self._claim_charged_once(self.alice, charge)

    def bad_keys(self) -> None:
        charge = self.alice.charge(9_00)
        for what, keys in (
            ("no key", ()),
            ("an empty key", (b"",)),
            ("a key of 256 characters", (b"k" * 256,)),
            ("a key outside ASCII", ("schlüssel".encode(),)),
            ("two keys", (b"one", b"two")),
        ):
            answer = post(self.api.url, charge, token=self.alice.token, keys=keys)
            expected = "malformed-key" if keys else "missing-key"
            found = f"{answer.status} {answer.problem}"
            self.claim(f"{what}: 400 {expected}", found == f"400 {expected}", found)
        self._claim_charged(self.alice, charge, times=0, text="nothing was charged")

    def declined(self) -> None:
        charge = self.bob.charge(OPENING_BALANCE + 1)
        first = self.post(self.api, self.bob, charge)
        self.claim("the account does not hold that much", first.status == 402, first)
        self.claim_replay(first, self.post(self.api, self.bob, charge))
        kept = list(Charge.objects.filter(reference=charge.body["reference"]).values_list("status", flat=True))
        self.claim("one declined charge is on record", kept == [Charge.Status.DECLINED], kept)

    def webhook(self) -> None:
        body = json.dumps({"account": str(self.bob.account.pk), "amount": 50_00, "currency": "EUR"}).encode()
        headers = {"Content-Type": "application/json", **signed_headers("acme", f"evt_{uuid4().hex}", body)}
        url = f"{self.api.url}/webhooks/acme/"
        answers = at_once(5, lambda: send(url, body, list(headers.items())))
        self.say(", ".join(str(answer) for answer in answers))
        statuses = {answer.status for answer in answers}
        self.claim("each was accepted, or told to come again", 201 in statuses <= {201, 409}, statuses)
        self.bob.spent -= 50_00
        self.claim_balance(self.bob)
        forged = send(url, body, list({**headers, "Webhook-Signature": "0" * 64}.items()))
        self.claim("a forged signature: 401", forged.status == 401, forged)

    def books(self) -> None:
        self.claim("every transfer adds up to nothing", ledger.is_balanced(), list(ledger.unbalanced_transfers()))
        self.cards.claim_nothing_is_under_way((self.alice, self.bob))
        for customer in (self.alice, self.bob):
            self.claim_balance(customer)

    def invitation(self) -> Sequence[str]:
        """How to go on by hand."""
        password = secrets.token_urlsafe(9)
        admin = User.objects.create_superuser(f"admin-{secrets.token_hex(2)}", password=password)
        charge, silent = self.alice.charge(1_00), self.cards.payment(self.alice, 42_00)
        fault = json.dumps({"next": [ProcessorFault.NO_ANSWER_AFTER_EFFECT.value]})
        environment = ("DATABASE_URL", "PROCESSOR_URL", "PROCESSOR_TIMEOUT")
        return (
            f"API    {self.api.url}/api/",
            f"Admin  {self.api.url}/admin/   user {admin.username}   password {password}",
            f"Token  {self.alice.token}",
            "A charge; send it twice and look at the headers:",
            *self._curl(charge),
            "A payment by card of which the processor's answer is lost, so that its key is held:",
            f"  curl {os.environ['PROCESSOR_URL']}/faults -d '{fault}'",
            *self._curl(silent),
            "In another terminal, what an operator has; a sweep takes it up half a minute later:",
            f"  export {' '.join(f'{name}={shlex.quote(os.environ[name])}' for name in environment)}",
            *(
                f"  {sys.executable} -m example_project.manage idempotency {each}"
                for each in ("status", f"show {silent.key}", "sweep")
            ),
        )

    def _curl(self, request: Request) -> Sequence[str]:
        return (
            f"  curl -i {self.api.url}{request.path} -H 'Authorization: Token {self.alice.token}' \\",
            f"    -H 'Content-Type: application/json' -H 'Idempotency-Key: {request.key}' \\",
            f"    -d '{json.dumps(request.body)}'",
        )

    def post(self, to: ApiServer | FaultProxy, customer: Customer, request: Request) -> Answer:
        answer = post(to.url, request, token=customer.token)
        self.say(f"{customer.name}: {request} -> {answer}")
        return answer

    @contextmanager
    def deadly_api(self, point: str = "before_seal") -> Iterator[tuple[ApiServer, Path]]:
        """An API of which one worker, once, kills itself: usually with the effect written and its record not."""
        with tempfile.TemporaryDirectory() as folder:
            marker = Path(folder) / "killed"
            with self.brief_api(IDEMPOTENCY_FAILPOINTS=f"{point}:kill@{marker}") as api:
                yield api, marker

    def brief_api(self, **environment: str) -> ApiServer:
        """An API whose leases are short."""
        return ApiServer({"IDEMPOTENCY_LEASE": str(LEASE_SECONDS), **environment})

    def claim_replay(self, first: Answer, again: Answer) -> None:
        self.claim("the next retry: the same status", first.status == again.status, f"{first}, then {again}")
        self.claim("the same bytes", first.body == again.body, f"{first.body!r}, then {again.body!r}")
        self.claim(f"and {REPLAYED}: true", again.replayed and not first.replayed, f"{first}, then {again}")

    def _claim_charged_once(self, customer: Customer, charge: Request) -> None:
        customer.spent += charge.body["amount"]
        self._claim_charged(customer, charge, times=1, text="one charge, one transfer")

    def _claim_charged(self, customer: Customer, charge: Request, *, times: int, text: str) -> None:
        made = Charge.objects.filter(reference=charge.body["reference"])
        found = made.count(), Transfer.objects.filter(charge__in=made).count()
        self.claim(text, found == (times, times), "{} charges, {} transfers".format(*found))
        self.claim_balance(customer)

    def claim_balance(self, customer: Customer) -> None:
        expected = OPENING_BALANCE - customer.spent
        self.claim(f"{customer.name} has {expected / 100:.2f}", customer.balance == expected, customer.balance / 100)
