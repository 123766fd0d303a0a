"""What decides bits besides a program's text."""

from __future__ import annotations

from typing import Any, cast

import jax


def matmul_precision() -> str:
    """jax's default matmul precision, which is part of every traced program."""
    config = cast("Any", jax.config)  # its options are made at run time
    return str(config.jax_default_matmul_precision or "default")
