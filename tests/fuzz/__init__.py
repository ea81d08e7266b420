"""Arbitrary bytes for everything that reads bytes: targets, a corpus, and the two ways of feeding them."""
