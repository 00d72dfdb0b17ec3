"""Decode workloads that can be captured or benched."""
