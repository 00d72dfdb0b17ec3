"""Read what any profiler wrote into one `Trace`."""
