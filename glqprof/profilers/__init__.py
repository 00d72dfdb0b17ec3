"""Run a profiler around a command and leave a capture folder."""
