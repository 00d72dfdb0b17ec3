"""Exact CPU implementation of the NVFP4 contract, at small sizes."""
