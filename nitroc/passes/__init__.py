"""Passes over the module, in the order of a pipeline; none of them imports JAX."""
