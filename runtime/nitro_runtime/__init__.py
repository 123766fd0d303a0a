"""The runtime: bundles are opened, checked, trained, evaluated and predicted with."""

import os

# Read once, while jaxlib loads, which may be before jax sets the same: start-up is no news.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
