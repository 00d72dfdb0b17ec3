"""A/B of kernel variants: registry, timing, identity, statistics."""
