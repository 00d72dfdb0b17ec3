"""One module per format; each turns a file into a `Trace`."""
