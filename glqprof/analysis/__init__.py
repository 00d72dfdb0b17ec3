"""Pure functions of a `Trace`: small DataFrames and dataclasses out; no files, no printing."""
