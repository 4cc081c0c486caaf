"""Whole-run configurations, and the text of the demo."""
