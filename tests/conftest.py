"""Shared by all tests: a compile cache of their own, and every stage re-read after each pass."""

import functools

import pytest

from nitroc.passes import pipeline


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="session")
def _round_trip():
    """What the pipeline runs on is printed, parsed and compared, whatever asked for the run."""
    run = pipeline.run

    @functools.wraps(run)
    def checked(module, passes=None, **options):
        return run(module, passes, **{**options, "roundtrip": True})

    patch = pytest.MonkeyPatch()
    patch.setattr(pipeline, "run", checked)
    yield
    patch.undo()
