"""Simulated worlds: the whole system in one process, under one seed."""
