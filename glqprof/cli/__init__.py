"""Typer commands: arguments in, the other rooms called, exit status out."""
