"""Render analysis results: terminal, Markdown, JSON, CSV, figures."""
