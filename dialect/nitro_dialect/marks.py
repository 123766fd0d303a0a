"""How the results and the report words of marks are named: the key of a mark, then a channel."""

from __future__ import annotations

RESULT = "mark."
"""What the name of a function's result begins with when it is a channel of a mark."""

MOST = 2.0**42 - 2.0**18
"""The largest count of one execution: a larger one is this one, so that no sum in i64 wraps to 0.

It would take 2**46 such executions in one step: in f32 no number of this size has less factors 2.
"""


def result_name(key: str, channel: str) -> str:
    """`mark.<key>:<channel>`: what a function's result for one channel of a mark is called."""
    return f"{RESULT}{key}:{channel}"


def channel_of(result: str) -> tuple[str, str] | None:
    """Key and channel of a result of that form, else None. Metadata may hold colons of its own."""
    if not result.startswith(RESULT):
        return None
    key, _, channel = result.removeprefix(RESULT).rpartition(":")
    return key, channel


def word_name(key: str, channel: str) -> str:
    """What the channel is called in a report: `guard/<key>[:odd]`, else `mark/<key>:<channel>`."""
    if channel == "count":
        return f"guard/{key}"
    return f"{'guard' if channel == 'odd' else 'mark'}/{key}:{channel}"
