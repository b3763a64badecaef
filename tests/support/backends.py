"""Every kind of store, for suites that hold for all of them."""

from __future__ import annotations

import pytest

from .keys import Keys
from .laboratory import LaboratoryFile


class Backend:
    """Sessions to one database, as this kind of store sees it."""

    def __init__(self, laboratory, **how):
        self.laboratory = laboratory
        self.how = how

    def session(self):
        return Keys(self.laboratory.session(**self.how))


@pytest.fixture(params=["postgresql", "postgresql with server-side binding", "sqlite"])
def backend(request, django_db_blocker):
    if request.param == "sqlite":
        with django_db_blocker.unblock():
            made = LaboratoryFile(request.getfixturevalue("sqlite_file"))
            yield Backend(made)
            made.close()
    else:
        binding = {"server_side_binding": True} if "binding" in request.param else {}
        yield Backend(request.getfixturevalue("shared_lab"), options=binding)


@pytest.fixture
def keys(backend):
    return backend.session()


@pytest.fixture
def rival(backend):
    return backend.session()
