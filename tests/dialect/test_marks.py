"""Names of the results that carry a mark's channels."""

from __future__ import annotations

import pytest

from nitro_dialect.marks import channel_of, result_name


@pytest.mark.parametrize("key", ["scores", "a/b.c#2", "loss{split=a:b, at=:}"])
def test_a_channel_is_read_from_the_name_it_was_given(key: str) -> None:
    assert channel_of(result_name(key, "count")) == (key, "count")


@pytest.mark.parametrize("name", ["loss", "metric.mark.x", "marks", "grad"])
def test_other_results_are_no_channel(name: str) -> None:
    assert channel_of(name) is None
