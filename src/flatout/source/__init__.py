"""Manifests and decoders: path -> arrays."""
