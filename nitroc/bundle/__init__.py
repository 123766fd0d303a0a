"""Bundles, written: parts of a compilation become files, files become a directory."""
