"""Startup logs, one reader an engine."""
