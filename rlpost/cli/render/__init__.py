"""Screens of commands, for terminals and pipes: summary, plan, lists, conversion, verdicts."""
