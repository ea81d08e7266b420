"""Worlds of consumers alone: their topics are fed by a plain producer."""
