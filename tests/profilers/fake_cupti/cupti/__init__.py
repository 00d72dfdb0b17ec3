"""Stands in for cupti-python: `cupti.cupti` has the names that the tracer uses, and a GPU of its own."""
