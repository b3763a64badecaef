"""The card processor for tests: one process for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from example_project.processor import ProcessorServer


@pytest.fixture(scope="module")
def shared_processor() -> Iterator[ProcessorServer]:
    with ProcessorServer() as server:
        yield server


@pytest.fixture
def processor(shared_processor, settings) -> Iterator[ProcessorServer]:
    """Each test has references of its own, meets every fault that it planned, and leaves none behind."""
    settings.PROCESSOR_URL = shared_processor.url
    yield shared_processor
    pending = shared_processor.control.pending()
    shared_processor.control.clear()
    shared_processor.control.resume()
    assert pending == []


@pytest.fixture
def control(processor):
    return processor.control
