"""Make a capture safe to share: keep what an analysis reads, drop all else, and refuse what still looks private."""
